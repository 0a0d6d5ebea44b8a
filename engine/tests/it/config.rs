//! The two configuration files: what is refused, with which words, and what everything means.

use std::collections::BTreeSet;

use llmsim_engine::config::{self, Basis, Config, Problem, Problems, Source};
use llmsim_engine::seed::{Generator, Seed};
use llmsim_engine::sim::scheduler::cost::{StepCost, StepShape};
use llmsim_engine::sim::scheduler::{Policy, Residual, SchedulerSpec, Scheduling};
use llmsim_engine::sim::{EngineSpec, Job, What};
use llmsim_engine::text::responses::Query;
use llmsim_engine::units::{JobId, SimSpan, SimTime, Tokens};

const GOOD_RESPONSES: &str = "default: { content: fine }";
const GOOD_MODELS: &str = "models: [{ name: m, context_length: 8192 }]";

fn load(models: &str, responses: &str) -> Result<Config, Problems> {
    config::load(&Source::new("models.yml", models), &Source::new("responses.yml", responses))
}

fn models(text: &str) -> Result<Config, Problems> {
    load(text, GOOD_RESPONSES)
}

fn responses(text: &str) -> Result<Config, Problems> {
    load(GOOD_MODELS, text)
}

#[track_caller]
fn good(loaded: Result<Config, Problems>) -> Config {
    loaded.unwrap_or_else(|problems| panic!("{problems}"))
}

/// Runs every case of a file of bad configurations, and shows all that differ.
#[track_caller]
fn check_bad(cases: &str, load: fn(&str) -> Result<Config, Problems>) -> usize {
    let mut count = 0;
    let mut differ = String::new();
    for case in cases.split("\n=== ").skip(1) {
        let (title, rest) = case.split_once('\n').unwrap();
        let (file, expected) = match rest.strip_prefix("---\n") {
            Some(expected) => ("", expected),
            None => rest.split_once("\n---\n").unwrap(),
        };
        // What the case file cannot hold itself.
        let file = file.replace("---- ", "---").replace('␀', "\0");
        let expected: Vec<&str> = expected.lines().filter(|line| !line.is_empty()).collect();
        let found = match load(&file) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.iter().cloned().collect(),
        };
        let fits = found.len() == expected.len()
            && found.iter().zip(&expected).all(|(found, expected)| says(found, expected));
        if !fits {
            let found: Vec<String> = found.iter().map(line).collect();
            let (expected, found) = (expected.join("\n"), found.join("\n"));
            differ += &format!("=== {title}\n{file}\nexpected:\n{expected}\nfound:\n{found}\n\n");
        }
        count += 1;
    }
    assert!(differ.is_empty(), "\n{differ}");
    count
}

/// A problem as the case files write it.
fn line(problem: &Problem) -> String {
    let place = problem.place.map_or("-".to_owned(), |at| format!("{}:{}", at.line, at.column));
    let path = if problem.path.is_empty() { "~" } else { &problem.path };
    let hint = problem.hint.as_ref().map_or(String::new(), |hint| format!(" | {hint}"));
    format!("{place} {path}: {}{hint}", problem.message)
}

fn says(found: &Problem, expected: &str) -> bool {
    let found_line = line(found);
    let (place_and_path, words) = expected.split_once(": ").unwrap();
    let (message, hint) = words.split_once(" | ").unwrap_or((words, ""));
    found_line.starts_with(&format!("{place_and_path}: "))
        && found.message.contains(message)
        && found.hint.as_deref().unwrap_or_default().contains(hint)
}

#[test]
fn bad_models_are_refused_with_place_reason_and_remedy() {
    let count = check_bad(include_str!("../cases/config/bad_models.txt"), models);
    assert!(count >= 50, "{count} cases");
}

#[test]
fn bad_responses_are_refused_with_place_reason_and_remedy() {
    let count = check_bad(include_str!("../cases/config/bad_responses.txt"), responses);
    assert!(count >= 20, "{count} cases");
}

#[track_caller]
#[test]
fn nobody_is_told_which_whole_number_a_fraction_should_be() {
    let hint = |written: &str| {
        let text = format!("models: [{{ name: m, context_length: {written} }}]");
        let problems = models(&text).unwrap_err();
        problems.iter().next().unwrap().hint.clone()
    };
    for fraction in ["1.5", "8192.25", "\"1.5\"", "'8_192.5'", ".5", "-1.5", ".inf", ".nan"] {
        assert_eq!(hint(fraction), None, "{fraction}");
    }
    assert_eq!(hint("\"8192\"").as_deref(), Some("write 8192"));
    assert!(hint("1.5k").unwrap().contains("without a unit"));
}

fn scheduler(config: &Config, name: &str) -> SchedulerSpec {
    let model = config.models.iter().find(|model| model.name == name).unwrap();
    match &model.engine {
        EngineSpec::Scheduler(spec) => spec.as_ref().clone(),
        other => panic!("{name}: {other:?}"),
    }
}

/// The example of the Python tool's manual, word for word.
const MANUAL: &str = "\
version: 1
hardware:
  h100-80gb:
    hbm_gib: 80
    memory_bandwidth_gbps: 3000
    peak_tflops: 989
models:
  - name: qwen-mock
    context_length: 32768
    tokenizer: regex # default: regex
    engine: fixed_rate # instant (default), fixed_rate or scheduler
    hardware: h100-80gb
    kv_cache:
      bytes_per_token: 524288
    performance:
      prefill_tokens_per_second: 100000
      decode_tokens_per_second: 250
    scheduler:
      max_batch_tokens: 8192
      max_num_sequences: 64
    latency:
      scheduler_overhead_ms: 2
  - name: tiny-mock # only name and context_length are required
    context_length: 8192
";

#[test]
fn files_of_the_python_tool_mean_the_same_here() {
    let config = good(models(MANUAL));
    let [qwen, tiny] = &config.models[..] else { panic!("{:?}", config.models) };
    assert_eq!((qwen.name.as_str(), qwen.context_length), ("qwen-mock", Tokens::new(32_768)));
    let EngineSpec::FixedRate(rates) = qwen.engine else { panic!("{:?}", qwen.engine) };
    assert_eq!(rates.overhead, SimSpan::from_ms(2));
    // 512 prompt tokens at 100,000 per second; a token every 4 ms.
    assert_eq!(rates.prefill.time_for(512), SimSpan::from_us(5120));
    assert_eq!(rates.decode.time_for(1), SimSpan::from_ms(4));
    assert_eq!((tiny.id.0, &tiny.engine), (1, &EngineSpec::Instant));
    assert_eq!(tiny.replicas, 1);
}

const OWN_SIZES: &str = "\
hardware:
  h100-80gb: { hbm_gib: 80, memory_bandwidth_gbps: 3000, peak_tflops: 989 }
models:
  - name: m
    context_length: 32768
    engine: scheduler
    hardware: h100-80gb
    weights: { parameters_billion: 7.6, bytes_per_parameter: 2 }
    kv_cache: { bytes_per_token: 57344 }
    scheduler: { max_batch_tokens: 8192, max_num_sequences: 64 }
    latency: { scheduler_overhead_ms: 1.5 }
    efficiency: { compute: 0.6, memory: 0.8 }
";

#[test]
fn a_scheduler_model_with_its_own_sizes_gets_vllms_defaults_for_the_rest() {
    let spec = scheduler(&good(models(OWN_SIZES)), "m");
    assert_eq!(spec.max_num_batched_tokens, Tokens::new(8192));
    assert_eq!(spec.max_num_seqs, 64);
    assert_eq!(spec.max_model_len, Tokens::new(32_768));
    assert_eq!(spec.block_size, Tokens::new(16));
    assert!(spec.prefix_caching && spec.chunked_prefill && spec.reserve_full_isl);
    assert_eq!(spec.scheduling, Scheduling::Asynchronous);
    assert_eq!(spec.policy, Policy::Fcfs);
    assert_eq!((spec.watermark, spec.prefill_interval), (0.0, 1));
    assert_eq!(spec.long_prefill_token_threshold, Tokens::ZERO);
    // 80 GiB x 0.92 = 79,027,398,246 B; less 15.2 GB of weights 63,827,398,246 B; a block of 16 x
    // 57,344 B is 917,504 B.
    assert_eq!(spec.num_blocks.get(), 69_566);
}

#[test]
fn a_step_of_a_model_with_its_own_sizes_is_the_textbook_roofline() {
    let spec = scheduler(&good(models(OWN_SIZES)), "m");
    let decode = |batch: u32, context: u64| StepShape {
        sequences: batch,
        decodes: batch,
        decode_context: u64::from(batch) * context,
        sampled: batch,
        ..StepShape::default()
    };
    // (15.2 GB + 16 x 1,000 x 57,344 B) / 2.4 TB/s = 6.715627 ms, and 1.5 ms on top.
    assert_eq!(spec.cost.time(&decode(16, 1000)).total.as_ns(), 8_215_627);
    // 2 x 7.6 G x 8,192 tokens / (0.6 x 989 T) = 209.838895 ms, and 1.5 ms on top.
    let prefill = StepShape { sequences: 1, chunks: 1, chunk_tokens: 8192, ..decode(0, 0) };
    assert_eq!(spec.cost.time(&prefill).total.as_ns(), 211_338_895);
}

#[test]
fn a_vllm_user_finds_vllms_names_wherever_they_are_put() {
    let text = "\
models:
  - name: m
    max-model-len: 16384
    engine: scheduler
    hardware: H100_80GB_SXM
    model: Llama-3.1-8B
    kv-cache-dtype: fp8
    max-num-seqs: 32
    max_num_batched_tokens: 4096
    gpu_memory_utilization: 0.5
    kv_cache: { block_size: 32, enable_prefix_caching: off }
    scheduler:
      policy: priority
      async_scheduling: no
      long_prefill_token_threshold: 1_024
      num_gpu_blocks_override: 1000
      watermark: 0.01
      scheduler_reserve_full_isl: false
      prefill_schedule_interval: 3
      max_num_active_seqs: 16
      max_num_queued_reqs: 500
      freed_blocks: all_last
";
    let spec = scheduler(&good(models(text)), "m");
    assert_eq!(spec.max_model_len, Tokens::new(16_384));
    assert_eq!((spec.max_num_seqs, spec.max_num_active_seqs), (32, Some(16)));
    assert_eq!(spec.max_num_batched_tokens, Tokens::new(4096));
    assert_eq!((spec.block_size, spec.num_blocks.get()), (Tokens::new(32), 1000));
    assert!(!spec.prefix_caching && !spec.reserve_full_isl);
    assert_eq!((spec.policy, spec.scheduling), (Policy::Priority, Scheduling::Synchronous));
    assert_eq!(spec.long_prefill_token_threshold, Tokens::new(1024));
    assert_eq!((spec.watermark, spec.prefill_interval), (0.01, 3));
    assert_eq!(spec.max_num_queued_reqs, Some(500));
    assert!(matches!(spec.cost, StepCost::Roofline(_)));
}

#[test]
fn the_type_of_the_cache_may_be_said_wherever_vllms_users_say_it() {
    // Llama 3.1 8B: 2 x 32 layers x 8 heads x 128 x 1 byte.
    let places = [
        "kv_cache_dtype: fp8",
        "kv-cache-dtype: fp8_e4m3",
        "scheduler: { kv_cache_dtype: fp8 }",
        "kv_cache: { kv_cache_dtype: fp8 }",
        "kv_cache: { dtype: fp8_e5m2 }",
    ];
    for place in places {
        let text = format!(
            "models:\n  - name: m\n    engine: scheduler\n    context_length: 8192\n    \
             hardware: h100-sxm\n    model: llama-3.1-8b\n    {place}\n"
        );
        let config = good(models(&text));
        let Some(Basis::Planned(plan)) = &config.models[0].basis else {
            panic!("{place} changes how the model is sized");
        };
        assert_eq!(plan.kv_bytes_per_token.get(), 65_536, "{place}");
    }
    let twice = "models:\n  - name: m\n    engine: scheduler\n    context_length: 8192\n    \
                 hardware: h100-sxm\n    model: llama-3.1-8b\n    kv_cache_dtype: fp8\n    \
                 kv_cache: { dtype: auto }\n";
    assert!(models(twice).unwrap_err().to_string().contains("already set by"));
}

#[test]
fn a_catalogue_model_needs_no_sizes_and_no_sections() {
    let text = "\
models:
  - name: llama
    engine: scheduler
    hardware: h200
    model: llama-3.1-8b
    replicas: 4
  - name: big
    engine: scheduler
    hardware: h100-sxm
    model: llama-3.1-70b
    tensor_parallel_size: 4
    context_length: 8192
    engine_class: vllm-v1-hopper-bf16
";
    let config = good(models(text));
    let llama = &config.models[0];
    // The model's own context, and vLLM's limits for a GPU of 70 GiB and more.
    assert_eq!((llama.context_length, llama.replicas), (Tokens::new(131_072), 4));
    assert_eq!((llama.tensor_parallel, config.models[1].tensor_parallel), (1, 4));
    let spec = scheduler(&config, "llama");
    assert_eq!(spec.max_num_batched_tokens, Tokens::new(8192));
    assert_eq!(spec.max_num_seqs, 1024);
    let Some(Basis::Planned(derived)) = &llama.basis else { panic!("{:?}", llama.basis) };
    assert_eq!(derived.kv_bytes_per_token.get(), 131_072);
    let Some(Basis::Planned(derived)) = &config.models[1].basis else { panic!() };
    assert_eq!(derived.kv_bytes_per_token_per_gpu.get(), 327_680 / 4);
    let class = llmsim_engine::catalog::engine_class("vllm-v1-hopper-bf16").unwrap();
    assert_eq!(config.models[1].request_overhead, class.request_overhead);
}

#[test]
fn a_config_json_is_as_good_as_a_name() {
    let text = "\
models:
  - name: m
    engine: scheduler
    hardware: h200
    hf_config: llama/config.json
    context_length: 8192
";
    let json = r#"{"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "intermediate_size": 14336,
        "max_position_embeddings": 131072}"#;
    let mut asked = Vec::new();
    let mut read = |path: &str| {
        asked.push(path.to_owned());
        Ok(json.to_owned())
    };
    let (models, responses) =
        (Source::new("models.yml", text), Source::new("responses.yml", GOOD_RESPONSES));
    let config = good(config::load_with(&models, &responses, &mut read));
    assert_eq!(asked, ["llama/config.json"]);
    let Some(Basis::Planned(derived)) = &config.models[0].basis else { panic!() };
    // 2 x 32 layers x 8 heads x 128 x 2 bytes.
    assert_eq!(derived.kv_bytes_per_token.get(), 131_072);

    let mut broken = |_: &str| Ok("{}".to_owned());
    let problems = config::load_with(&models, &responses, &mut broken).unwrap_err().to_string();
    assert!(
        problems.contains("models.yml:5:16: models[0].hf_config: llama/config.json"),
        "{problems}"
    );
}

#[test]
fn a_calibrated_scale_stretches_every_step_alike() {
    let with = |efficiency: &str| {
        let text = format!(
            "models: [{{ name: m, engine: scheduler, hardware: h200, model: llama-3.1-8b,
            efficiency: {efficiency} }}]"
        );
        scheduler(&good(models(&text)), "m")
    };
    let shape = StepShape {
        sequences: 9,
        decodes: 8,
        decode_context: 8000,
        chunks: 1,
        chunk_tokens: 512,
        chunk_pairs_doubled: 512 * 512,
        sampled: 9,
        ..StepShape::default()
    };
    let once = with("{}").cost.time(&shape).total.as_ns() as f64;
    let twice = with("{ scale: 2 }").cost.time(&shape).total.as_ns() as f64;
    assert!((twice / once - 2.0).abs() < 1e-6, "{once} {twice}");
}

/// Nothing but launching takes the host's time: 40 layers of 50 ms are 2 s, in which the few
/// milliseconds of work on the GPU hide (of 20 ms, (20 / 2,000)^4 / 4 would show: 5 ns).
#[test]
fn a_step_with_a_prefill_waits_for_its_launches_and_a_decode_does_not() {
    let text = "models: [{ name: m, engine: scheduler, hardware: h100-80gb-sxm, model: qwen3-14b,
        efficiency: { host_per_step_ms: 0, host_per_layer_us: 0, host_per_sequence_us: 0,
        launch_per_layer_us: 50_000 } }]";
    let spec = scheduler(&good(models(text)), "m");
    let mut engine = EngineSpec::Scheduler(Box::new(spec)).build();
    let job = |id: u64, prompt: u32, output: u32| Job {
        id: JobId(id),
        prompt: Tokens::new(prompt),
        max_tokens: Tokens::new(output),
        stop_after: None,
        priority: 0,
        chain: None,
    };
    engine.submit(SimTime::ZERO, job(1, 10, 8));
    let (mut tokens, mut events) = (Vec::new(), Vec::new());
    while let Some(now) = engine.deadline() {
        engine.advance(now, &mut events);
        for event in events.drain(..) {
            let What::Token { .. } = event.what else { continue };
            tokens.push((event.job.0, event.at));
            if tokens.len() == 2 {
                engine.submit(event.at, job(2, 10, 1));
            }
        }
    }
    let of = |id: u64| tokens.iter().filter(move |(job, _)| *job == id).map(|(_, at)| *at);
    // The prefill of the second is a part of one of the first one's steps.
    let [other] = of(2).collect::<Vec<_>>()[..] else { panic!("{tokens:?}") };
    let mut before = SimTime::ZERO;
    let mut launched = 0;
    for at in of(1) {
        let step = (at - before).as_ns();
        if before == SimTime::ZERO || at == other {
            launched += 1;
            assert!((2_000_000_000..2_000_000_010).contains(&step), "{tokens:?}");
        } else {
            assert!((1_000_000..20_000_000).contains(&step), "{tokens:?}");
        }
        before = at;
    }
    assert_eq!((of(1).count(), launched), (8, 2), "{tokens:?}");
}

#[test]
fn habits_of_other_yaml_files_work() {
    // A byte order mark, PyYAML's booleans and digit groups, anchors under `x-`, merge keys.
    let text = "\u{feff}\
x-fast: &fast
  engine: fixed_rate
  performance: &rates { prefill_tokens_per_second: 100_000, decode_tokens_per_second: 250 }
models:
  - <<: *fast
    name: a
    context_length: 8_192
  - <<: [{ engine: instant }, *fast]
    name: b
    context_length: 0x2000
    performance: *rates
  - { <<: *fast, name: c, context_length: 8192, performance: { <<: *rates, decode_tokens_per_second: 50 } }
...
";
    let config = good(models(text));
    let EngineSpec::FixedRate(rates) = config.models[0].engine else { panic!() };
    assert_eq!(rates.decode.time_for(1), SimSpan::from_ms(4));
    assert_eq!(config.models[1].engine, EngineSpec::Instant);
    assert_eq!(config.models[1].context_length, Tokens::new(8192));
    let EngineSpec::FixedRate(rates) = config.models[2].engine else { panic!() };
    assert_eq!(rates.decode.time_for(1), SimSpan::from_ms(20));
}

#[test]
fn all_problems_of_both_files_are_told_at_once() {
    let problems = load(
        "models:\n  - name: a\n    context_length: lots\n    engnie: instant\n",
        "default: { contents: a }\nseed: x\n",
    )
    .unwrap_err();
    assert_eq!(
        problems.to_string(),
        "\
models.yml:3:21: models[0].context_length: must be a whole number, but is the text \"lots\"
 3 |     context_length: lots
   |                     ^
models.yml:4:5: models[0]: unknown key `engnie`
 4 |     engnie: instant
   |     ^
   -> did you mean `engine`?
responses.yml:1:10: default: `default` must say what to answer
 1 | default: { contents: a }
   |          ^
   -> exactly one of `content`, `variants`, `synthetic`
responses.yml:1:12: default: unknown key `contents`
 1 | default: { contents: a }
   |            ^
   -> did you mean `content`?
responses.yml:2:7: seed: must be a whole number, but is the text \"x\"
 2 | seed: x
   |       ^"
    );
}

#[test]
fn a_flood_of_problems_is_counted_not_printed() {
    let mut text = "models:\n".to_owned();
    for i in 0..3000 {
        text.push_str(&format!("  - {{ name: m{i}, context_length: no }}\n"));
    }
    let problems = models(&text).unwrap_err();
    assert_eq!(problems.iter().count(), 3000);
    let printed = problems.to_string();
    assert!(printed.ends_with("and 2950 more problems"), "{printed}");
}

#[test]
fn responses_are_read_as_the_manual_shows_them() {
    let text = "\
version: 1
seed: 42
responses:
  - id: greeting
    match: { exact: [\"hi\", \"hello\"] }
    content: \"Hello! How can I help you today?\"
  - id: weather
    match: { regex: \"weather in (?P<city>\\\\w+)\" }
    variants:
      - \"It's sunny in {city} today.\"
      - \"Expect light rain in {city}.\"
  - id: echo
    match: { starts_with: \"/echo\" }
    content: \"You said: {last_user_message}\"
  - id: long-answer
    match: { contains: \"explain\" }
    synthetic: { tokens: [200, 400] }
default:
  variants:
    - \"I'm a simulated model ({model}).\"
    - \"This is a canned response.\"
";
    let responses = good(responses(text)).responses;
    let say = |input: &str| {
        let query = Query { input, model: "qwen-mock", ..Query::default() };
        let script = responses.answer(&query);
        let text: String = (0..script.len().get()).map(|k| script.piece(k).to_owned()).collect();
        (script.entry_id().to_owned(), text, script.len().get())
    };
    assert_eq!(say(" HELLO ").1, "Hello! How can I help you today?");
    assert_eq!(say("/echo a  b").1, "You said: /echo a  b");
    let (id, text, _) = say("What is the weather in Oslo?");
    assert_eq!(id, "weather");
    assert!(text.contains("in Oslo"), "{text}");
    let (id, _, tokens) = say("please explain");
    assert!(id == "long-answer" && (200..=400).contains(&tokens), "{id} {tokens}");
    assert_eq!(say("anything else").0, "default");
}

const BUILTIN_MODELS: &str = include_str!("../../../defaults/models.yml");
const BUILTIN_BENCH: &str = include_str!("../../../defaults/bench-responses.yml");

/// Bits of YAML that change the meaning of what stands around them.
const SCRAPS: [&str; 24] = [
    ":",
    ": ",
    "- ",
    "\n",
    "\n  ",
    "  ",
    "\t",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "<<: ",
    "\"",
    "'",
    "|\n",
    ">-\n",
    "# ",
    "!!",
    "---\n",
    "...",
    "\u{feff}",
    "9999999999999999999999",
];

fn mutated(text: &str, random: &mut Generator) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..=random.below(6) {
        let at = random.below(chars.len() as u64 + 1) as usize;
        let end = (at + random.below(20) as usize).min(chars.len());
        match random.below(4) {
            0 => drop(chars.drain(at..end)),
            1 => chars.insert(at, char::from(random.below(128) as u8)),
            2 => {
                let copy: Vec<char> = chars[at..end].to_vec();
                let to = random.below(chars.len() as u64 + 1) as usize;
                chars.splice(to..to, copy);
            }
            _ => {
                let scrap = SCRAPS[random.below(SCRAPS.len() as u64) as usize];
                chars.splice(at..at, scrap.chars());
            }
        }
    }
    chars.into_iter().collect()
}

#[test]
fn damaged_files_are_refused_in_their_place_or_taken_but_never_stop_the_program() {
    let originals = [MANUAL, BUILTIN_MODELS, BUILTIN_BENCH, OWN_SIZES];
    let mut refused = 0;
    for seed in 0..3000 {
        let random = &mut Seed::new(seed).generator();
        let text = mutated(originals[(seed % 4) as usize], random);
        for loaded in [models(&text), responses(&text)] {
            let Err(problems) = loaded else { continue };
            refused += 1;
            let lines = text.lines().count() as u32;
            for problem in problems.iter() {
                let place = problem.place.unwrap();
                assert!(!problem.message.is_empty() && place.line <= lines + 1, "seed {seed}");
            }
            assert!(!problems.to_string().is_empty());
        }
    }
    assert!(refused > 3000, "{refused}: the damage was too gentle");
}

#[test]
fn the_builtin_conversation_has_over_a_thousand_different_answers() {
    let text = include_str!("../../../defaults/responses.yml");
    good(load(BUILTIN_MODELS, text));
    let file: serde_yaml::Value = serde_yaml::from_str(text).unwrap();
    let entries = file["responses"].as_sequence().unwrap().iter().chain([&file["default"]]);
    let answers: BTreeSet<&str> = entries
        .flat_map(|entry| {
            let variants = entry["variants"].as_sequence().into_iter().flatten();
            variants.chain([&entry["content"]]).filter_map(serde_yaml::Value::as_str)
        })
        .collect();
    assert!(answers.len() >= 1000, "{}", answers.len());
}

#[test]
fn large_files_that_mean_nothing_end_soon() {
    let many = 10_000;
    let list = |item: &str| format!("models:\n{}", format!("  - {item}\n").repeat(many));
    let numbered = |line: fn(usize) -> String| (0..many).map(line).collect::<String>();
    for (text, words) in [
        (list("{}"), "`name` is missing"),
        (list("7"), "must be a mapping"),
        (list("{ name: a, context_length: 8 }"), "used twice"),
        (list("{ name: a, hardware: x, engine: scheduler }"), "needs `weights`"),
        (numbered(|i| format!("key{i}: 1\n")), "unknown key"),
        (
            format!("hardware:\n{}{GOOD_MODELS}", numbered(|i| format!("  gpu{i}: {{ a: 1 }}\n"))),
            "unknown key `a`",
        ),
        (
            format!(
                "hardware:\n{}models:\n{}",
                numbered(|i| format!("  gpu{i}: {{}}\n")),
                numbered(|i| format!("  - {{ name: m{i}, context_length: 8, hardware: g{i} }}\n"))
            ),
            "there is no hardware profile",
        ),
    ] {
        let problems = models(&text).unwrap_err().to_string();
        assert!(problems.contains(words), "{words}: {problems}");
    }
    let entries = numbered(|i| format!("  - {{ id: e{}, match: {{}} }}\n", i / 2));
    let problems = responses(&format!("responses:\n{entries}")).unwrap_err().to_string();
    assert!(problems.contains("matches nothing"), "{problems}");
}

mod failures_on_purpose {
    use llmsim_engine::config::{self, Source};
    use llmsim_engine::faults::{Fault, Settings};

    const MODELS: &str = "
version: 1
hardware: { gpu: { hbm_gib: 80, memory_bandwidth_gbps: 3000, peak_tflops: 989 } }
models:
  - { name: quick, context_length: 1000 }
  - name: org/paced
    context_length: 1000
    engine: fixed_rate
    replicas: 2
    performance: { prefill_tokens_per_second: 1000, decode_tokens_per_second: 100 }
";

    fn load(faults: &str) -> Result<Settings, String> {
        let models = Source::new("models.yml", format!("{MODELS}{faults}"));
        let responses = Source::new("responses.yml", "version: 1\ndefault: { content: \"Hi.\" }\n");
        config::load(&models, &responses)
            .map(|config| config.faults)
            .map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_rule_is_a_text_or_a_mapping_and_means_the_same() {
        let text = load(
            "faults:\n  - status=429 retry_after=2s first=2 header.x-tenant=acme\n  - close p=0.1\n",
        )
        .unwrap();
        let mapping = load(
            "faults:\n  seed: 0\n  rules:\n  - { status: 429, retry_after: 2s, first: 2, \
             header: { x-tenant: acme } }\n  - close: true\n    p: 0.1\n",
        )
        .unwrap();
        let faults = |settings: &Settings| {
            settings.rules.iter().map(|rule| (rule.fault.clone(), rule.when.clone())).collect()
        };
        let (text, mapping): (Vec<_>, Vec<_>) = (faults(&text), faults(&mapping));
        assert_eq!(text, mapping);
    }

    #[test]
    fn a_models_own_rules_hit_only_that_model() {
        let models = format!("{MODELS}    faults: [stall=1s after=2, status=500]\n");
        let models = Source::new("models.yml", models);
        let responses = Source::new("responses.yml", "version: 1\ndefault: { content: \"Hi.\" }\n");
        let faults = config::load(&models, &responses).unwrap().faults;
        assert_eq!(faults.rules.len(), 2);
        assert!(faults.rules.iter().all(|rule| rule.when.model.as_deref() == Some("org/paced")));
    }

    #[test]
    fn a_timeline_reads_as_sentences() {
        let file = "seed: 7\nheaders: false\ntimeline:\n  at 30s: slow gpu0 by 3\n  at 1m:\n    - \
                    crash gpu1 for 10s\n    - status=503 for=5s\n";
        let models = Source::new("models.yml", MODELS);
        let responses = Source::new("responses.yml", "version: 1\ndefault: { content: \"Hi.\" }\n");
        let models = config::load(&models, &responses).unwrap().models;
        let faults = config::load_faults(&Source::new("faults.yml", file), &models).unwrap();
        assert_eq!((faults.seed, faults.headers), (7, Some(false)));
        let said: Vec<&str> = faults.rules.iter().map(|rule| rule.text.as_str()).collect();
        let rules =
            ["slow=3 gpu=gpu0 at=30s", "crash=10s gpu=gpu1 at=1m", "status=503 for=5s at=1m"];
        assert_eq!(said, rules);
        assert!(matches!(faults.rules[2].fault, Fault::Status(_)));
    }

    #[test]
    fn a_mistake_is_told_with_its_line_and_column() {
        for (faults, told) in [
            (
                "faults:\n  - close\n  - stauts=500\n",
                "models.yml:13:5: faults[1]: unknown word `stauts`",
            ),
            ("faults:\n  - close p=2\n", "models.yml:12:11: faults[0]: `p` must be a probability"),
            ("faults:\n  - close: true\n    first: 0\n", "models.yml:13:5: faults[0]: `first`"),
            ("faults:\n  - close model=quikc\n", "there is no model `quikc`"),
            ("faults:\n  - crash=1s gpu=2\n", "there is no simulated GPU 2"),
            ("faults:\n  - crash=1s model=quick\n", "`crash` has no simulated GPU to befall"),
            (
                "faults:\n  timeline:\n    at noon: crash gpu0 for 1s\n",
                "models.yml:13:5: faults.timeline: `at` must be a time, but is `noon`",
            ),
            ("faults:\n  timeline:\n    later: close\n", "`later` is not a time"),
            (
                "faults:\n  seed: 18446744073709551616\n  rules: [close]\n",
                "must be at most 18446744073709551615, but is far larger",
            ),
            ("faults:\n  seed: -1\n  rules: [close]\n", "must be at least 0, but is -1"),
            // `fixed_rate` has neither a cache nor a batch.
            (
                "faults:\n  - shrink=50% for=1s\n",
                "models.yml:12:5: faults[0]: `shrink` does nothing to `org/paced`",
            ),
            ("faults:\n  - preempt gpu=1\n", "`preempt` does nothing to `org/paced`"),
            (
                &format!("faults:\n{}", "  - close p=0.5\n".repeat(1_001)),
                "models.yml:1012:5: faults[1000]: more than 1000 rules",
            ),
        ] {
            let problems = load(faults).expect_err(faults);
            assert!(problems.contains(told), "{faults}\n{problems}");
        }
    }
}

#[test]
fn steps_stray_only_where_a_section_says_so() {
    let model = |more: &str| {
        let text = format!(
            "models:\n  - name: m\n    engine: scheduler\n    model: llama-3.1-8b\n    \
             hardware: h100-sxm\n    context_length: 4096\n{more}"
        );
        models(&text)
    };
    assert_eq!(scheduler(&good(model("")), "m").residual, None);
    let config = good(model(
        "    step_residual: {seed: 3, sigma: 0.05, tail_probability: 0.01, tail_factor: 4}\n",
    ));
    assert_eq!(
        scheduler(&config, "m").residual,
        Some(Residual { seed: 3, sigma: 0.05, tail_probability: 0.01, tail_factor: 4.0 })
    );
    let config = good(model("    step_residual: {sigma: 0.1}\n"));
    assert_eq!(
        scheduler(&config, "m").residual,
        Some(Residual { seed: 0, sigma: 0.1, tail_probability: 0.0, tail_factor: 1.0 })
    );
    for (wrong, word) in [
        ("{sigma: 1}", "sigma"),
        ("{sigma: -0.1}", "sigma"),
        ("{tail_probability: 0.6}", "more than half"),
        ("{tail_factor: 0.5}", "tail_factor"),
        ("{tail_factor: 2000}", "more than 1000"),
        ("{width: 1}", "width"),
    ] {
        let problems = model(&format!("    step_residual: {wrong}\n")).unwrap_err().to_string();
        assert!(problems.contains(word), "{wrong}: {problems}");
    }
    let text = "models:\n  - {name: m, context_length: 100, step_residual: {sigma: 0.1}}\n";
    assert!(models(text).unwrap_err().to_string().contains("no steps that could stray"));
}
