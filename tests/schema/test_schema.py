"""docs/schema/*.json against the `jsonschema` package and against the loader.

Usage: test_schema.py SERVER_BINARY, from the repository's root. Three things are shown: every
configuration in the repository and every YAML example in the documents validates and loads; what the
schema refuses for a single value the loader refuses too, for each key and each limit of it; and a
value at its limit, which the schema takes, is not called out of range by the loader.
"""
import concurrent.futures
import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import jsonschema
import yaml

SERVER = str(pathlib.Path(sys.argv[1]).resolve())
KINDS = ("models", "responses")
SCHEMAS = {kind: json.loads(pathlib.Path(f"docs/schema/{kind}.json").read_text()) for kind in KINDS}
for schema in SCHEMAS.values():
    jsonschema.Draft202012Validator.check_schema(schema)
VALIDATORS = {kind: jsonschema.Draft202012Validator(schema) for kind, schema in SCHEMAS.items()}
WORK = pathlib.Path(tempfile.mkdtemp(prefix="llmsim-schema-"))
passed, failed = 0, []


def tell(title, mistake):
    global passed
    if mistake:
        failed.append(title)
        print(f"FAIL {title}: {mistake}", flush=True)
    else:
        passed += 1


def check(kind, path):
    """What the loader says of a file; nothing if it is good. The other file is a short one."""
    other = ["--models", "docs/routers/models.yml"] if kind == "responses" else ["--responses", "tests/routers/responses.yml"]
    command = [SERVER, f"--{kind}", path, *other, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return "" if done.returncode == 0 else done.stderr or f"exit code {done.returncode}"


def kind_of(document):
    """By its keys; nothing if it is no file of ours, or a part of one."""
    if not isinstance(document, dict):
        return None
    if "models" in document and isinstance(document["models"], list) and "model_list" not in document:
        first = document["models"][0] if document["models"] else None
        return "models" if isinstance(first, dict) and ("name" in first or "served_model_name" in first) else None
    return "responses" if "default" in document and set(document) <= {"version", "seed", "responses", "default"} else None


def files():
    """(name, kind, text) of all configurations in the repository."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    for name in listed:
        text = None
        if name.endswith((".yml", ".yaml")):
            text = pathlib.Path(name).read_text()
            try:
                documents = list(yaml.safe_load_all(text))
            except yaml.YAMLError:
                continue
            kind = kind_of(documents[0]) if len(documents) == 1 else None
            if kind:
                yield name, kind, text
        elif name.endswith(".md"):
            blocks = re.findall(r"^```yaml\n(.*?)^```", pathlib.Path(name).read_text(), re.M | re.S)
            for number, block in enumerate(blocks, 1):
                try:
                    kind = kind_of(yaml.safe_load(block))
                except yaml.YAMLError:
                    continue
                if kind:
                    yield f"{name}, YAML example {number}", kind, block
    for name in ("models", "responses", "bench-responses"):
        text = subprocess.run([SERVER, "--print-config", name], capture_output=True, text=True, check=True).stdout
        yield f"builtin:{name}", name.split("-")[-1], text


def printed():
    for kind in KINDS:
        text = subprocess.run([SERVER, "--print-schema", kind], capture_output=True, text=True, check=True).stdout
        tell(f"--print-schema {kind}", "" if json.loads(text) == SCHEMAS[kind] else "is not docs/schema's")


def examples():
    count = 0
    for name, kind, text in files():
        count += 1
        errors = [f"{e.json_path}: {e.message[:200]}" for e in VALIDATORS[kind].iter_errors(yaml.safe_load(text))]
        path = WORK / f"example-{count}.yml"
        path.write_text(text)
        said = check(kind, path)
        # A file that names another is read from its own place.
        if said and pathlib.Path(name).is_file():
            said = check(kind, name)
        tell(name, "; ".join(errors[:3]) or said)
    print(f"{count} configurations validate and load" if not failed else f"{count} configurations")


def parts(schema, root):
    """A schema with all that it refers to."""
    yield schema
    if "$ref" in schema:
        yield from parts(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    for several in ("allOf", "oneOf", "anyOf"):
        for one in schema.get(several, []):
            yield from parts(one, root)


def sections(schema, root, value, path):
    """(path, keys with their schemas) of each section that an example has."""
    for part in parts(schema, root):
        if isinstance(value, dict):
            if "properties" in part:
                yield path, part["properties"]
                for key, below in part["properties"].items():
                    if key in value:
                        yield from sections(below, root, value[key], [*path, key])
            if isinstance(part.get("additionalProperties"), dict):
                for key in value:
                    yield from sections(part["additionalProperties"], root, value[key], [*path, key])
        if isinstance(value, list) and isinstance(part.get("items"), dict):
            for index, item in enumerate(value):
                yield from sections(part["items"], root, item, [*path, index])


def limits(schema):
    """(value, is it good?) at and beyond the limits of a simple value."""
    kind = schema.get("type")
    if "enum" in schema:
        yield from ((value, True) for value in schema["enum"])
        yield "no-such-word", False
        yield 5, False
    elif "const" in schema:
        yield schema["const"], True
        yield schema["const"] + 1, False
        yield "x", False
    elif kind == "boolean":
        yield from ((True, True), (False, True), ("perhaps", False), ([], False))
    elif kind in ("integer", "number"):
        yield from (("many", False), ([], False), ({}, False), (True, False))
        step = 1 if kind == "integer" else None
        if kind == "integer":
            yield 1.5, False
        if "minimum" in schema:
            low = schema["minimum"]
            yield low, True
            yield (low - step if step else (low * 0.5 if low > 0 else -1e-3)), False
        if "maximum" in schema:
            high = schema["maximum"]
            yield high, True
            yield (high + step if step else high * 1.01), False
        if "exclusiveMaximum" in schema:
            yield schema["exclusiveMaximum"], False
    elif kind == "string":
        yield from (([], False), ({}, False))
        if "pattern" in schema:
            yield " ", False


def mutated(document, path, key, value):
    changed = copy.deepcopy(document)
    place = changed
    for step in path:
        place = place[step]
    place[key] = value
    return changed


def alike(root, key, schema):
    """Other spellings of a key: only one of them may stand there."""
    named = re.match(r"Another name of `(\w+)`", schema.get("description", ""))
    return named.group(1) if named else key


def values(kind):
    """Each key of each section: values at and beyond its limits."""
    root = SCHEMAS[kind]
    document = yaml.safe_load(pathlib.Path(f"tests/schema/{kind}.yml").read_text())
    cases = []
    for path, properties in sections(root, root, document, []):
        place = document
        for step in path:
            place = place[step]
        # A key that the schema does not have.
        cases.append((path, "no_such_key", 1, False))
        for key, schema in properties.items():
            settled = next((part for part in parts(schema, root) if {"type", "enum", "const"} & set(part)), {})
            # Where another spelling stands already this one would be the second.
            others = {k for k, s in properties.items() if k != key and alike(root, k, s) == alike(root, key, schema)}
            if others & set(place):
                continue
            forms = [form for part in parts(schema, root) for form in part.get("oneOf", [])]
            for value, good in limits(settled):
                # Of several forms one may be a list or a mapping.
                if not (forms and isinstance(value, (list, dict))):
                    cases.append((path, key, value, good))
            if any("minItems" in form for form in forms):
                cases.append((path, key, [], False))

    def tried(number, case):
        path, key, value, good = case
        changed = mutated(document, path, key, value)
        title = f"{kind}: {'.'.join(map(str, [*path, key]))} = {value!r}"
        if VALIDATORS[kind].is_valid(changed) != good:
            return title, f"the schema should {'take' if good else 'refuse'} it"
        file = WORK / f"{kind}-{number}.yml"
        file.write_text(yaml.safe_dump(changed, sort_keys=False))
        said = check(kind, file)
        if not good and not said:
            return title, "the loader takes it"
        # Taken by itself; together with the rest of the example it may still make no sense.
        shape = re.compile(rf"{re.escape(str(key))}: must be (from|at least|above|one of|a (whole )?number|text|`true`)")
        if good and (found := shape.search(said)):
            return title, f"the loader refuses it: {said[found.start():][:200]}"
        return title, ""

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for title, mistake in pool.map(tried, range(len(cases)), cases):
            tell(title, mistake)
    print(f"{kind}: {len(cases)} values at and beyond their limits")


printed()
examples()
for kind in KINDS:
    values(kind)
print(f"{passed} passed, {len(failed)} failed")
sys.exit(1 if failed else 0)
