//! The tokenizer of a real model.
//!
//! `tokenizers/hello.json` is a byte-level BPE like GPT-2's, small enough to be worked out by hand:
//! 256 bytes in GPT-2's order (`!` is 0, a line feed 198, a space 220), then the merges `lo` 256,
//! `he` 257, `hel` 258, `hello` 259, ` w` 260, `or` 261, ` wor` 262, `ld` 263, ` world` 264, `us`
//! 265, `use` 266, `user` 267, the first two bytes of 你 268, and its last with the first of 好 269;
//! then `<|im_start|>` 270 and `<|im_end|>` 271.

use std::num::NonZeroU32;
use std::sync::Arc;

use llmsim_engine::config::{self, Source};
use llmsim_engine::seed::Seed;
use llmsim_engine::text::model_tokenizer::{ModelTokenizer, NoText, Token, Tokenizer};
use llmsim_engine::text::output::Output;
use llmsim_engine::text::prompt::{ChainSpec, End, Message, PromptReader};
use llmsim_engine::text::responses::Query;
use llmsim_engine::text::script::{PieceTable, Script};
use llmsim_engine::text::stop::{self, Stops};
use llmsim_engine::text::token_ids;
use llmsim_engine::units::Tokens;

const HELLO: &str = include_str!("../tokenizers/hello.json");

fn hello() -> Arc<ModelTokenizer> {
    Arc::new(ModelTokenizer::from_json(HELLO.as_bytes()).unwrap())
}

/// The file with something replaced that is in it.
fn changed(from: &str, to: &str) -> String {
    assert!(HELLO.contains(from), "{from}");
    HELLO.replace(from, to)
}

fn check(text: &str, expected: &[(u32, &str)]) {
    let cut = hello().cut(text);
    let mut start = 0;
    let pieces = cut.ids.iter().zip(&cut.ends).map(|(&id, &end)| {
        let piece = &text[start..end];
        start = end;
        (id, piece)
    });
    assert_eq!(pieces.collect::<Vec<_>>(), expected, "{text:?}");
    assert_eq!(hello().ids(text), cut.ids, "{text:?}");
}

#[test]
fn words_are_merged_in_the_order_of_the_merges() {
    check("hello world", &[(259, "hello"), (264, " world")]);
    check("help", &[(258, "hel"), (79, "p")]);
    check("lord", &[(256, "lo"), (81, "r"), (67, "d")]);
    check("", &[]);
}

#[test]
fn a_token_that_is_a_part_of_a_character_waits_for_the_one_that_completes_it() {
    // é is C3 A9, without a merge.
    check("hé!", &[(71, "h"), (127, ""), (102, "é"), (0, "!")]);
    check("你", &[(268, ""), (254, "你")]);
    // The second token ends one character and begins the next.
    check("你好", &[(268, ""), (269, "你"), (98, ""), (121, "好")]);
    check(" 你", &[(220, " "), (268, ""), (254, "你")]);
}

/// UTF-8: é is C3 A9, 你 E4 BD A0 and 好 E5 A5 BD.
#[test]
fn a_token_that_is_a_part_of_a_character_has_its_bytes_all_the_same() {
    let bytes = |text: &str| {
        let table = PieceTable::cut(text.to_owned(), &Tokenizer::Model(hello()));
        let script = Script::from_table("x".into(), Arc::new(table));
        (0..script.len().get()).map(|k| script.bytes(k).to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(bytes("hé!"), [b"h".to_vec(), vec![0xc3], vec![0xa9], b"!".to_vec()]);
    assert_eq!(bytes("你好"), [vec![0xe4, 0xbd], vec![0xa0, 0xe5], vec![0xa5], vec![0xbd]]);
    assert_eq!(bytes("hello world"), [b"hello".to_vec(), b" world".to_vec()]);
}

#[test]
fn special_tokens_in_a_text_are_what_they_are_for_the_model() {
    check(
        "hello<|im_end|>\nhello",
        &[(259, "hello"), (271, "<|im_end|>"), (198, "\n"), (259, "hello")],
    );
}

#[test]
fn pieces_put_together_are_the_text_and_ids_give_it_back() {
    let model = hello();
    for text in [
        "hello world",
        "  two  spaces\n\n\tand more   ",
        "naïve 你好 😀👩‍👩‍👧 \u{2028} \u{0}",
        "don't 1234 <|im_start|>user\nhello<|im_end|>",
    ] {
        let cut = model.cut(text);
        assert!(cut.ends.is_sorted(), "{text:?}");
        assert_eq!(cut.ends.last(), Some(&text.len()));
        assert!(cut.ends.iter().all(|&end| text.is_char_boundary(end)));
        assert_eq!(model.text(&cut.ids).as_deref(), Ok(text));
    }
    assert_eq!(model.text(&[259, 9999, 259]), Err(NoText::Unknown(1)));
    assert_eq!([264, 271, 9999].map(|id| model.name(id)), ["Ġworld", "<|im_end|>", ""]);
}

#[test]
fn a_tokenizer_that_changes_the_text_still_gives_all_of_it() {
    let lower = changed(r#""normalizer": null"#, r#""normalizer": { "type": "Lowercase" }"#);
    let model = ModelTokenizer::from_json(lower.as_bytes()).unwrap();
    let cut = model.cut("HELLO World");
    assert_eq!((cut.ids, cut.ends), (vec![259, 264], vec![5, 11]));
    // It drops all of this: an answer that says it is one token all the same.
    let strip = changed(
        r#""normalizer": null"#,
        r#""normalizer": { "type": "Replace", "pattern": { "String": "x" }, "content": "" }"#,
    );
    let model = ModelTokenizer::from_json(strip.as_bytes()).unwrap();
    assert_eq!(model.cut("xx").ends, [2]);
}

#[test]
fn a_chat_is_chatml_cut_as_the_model_does() {
    let chat = [Message { role: "user", content: "hello world" }];
    let model = hello();
    let (byte, assistant) =
        (|c: u8| u32::from(c - b'!'), b"assistant".map(|c| u32::from(c - b'!')));
    let mut expected = vec![270, 267, 198, 259, 264, 271, 198, 270];
    expected.extend(assistant);
    expected.push(198);
    assert_eq!(token_ids::chat_ids(&model, &chat, End::AnswerBegins), expected);
    assert_eq!(token_ids::chat_ids(&model, &chat, End::Closed), expected[..7]);
    // What goes on with the message has neither its end nor the line feed behind that.
    assert_eq!(token_ids::chat_ids(&model, &chat, End::Open), expected[..5]);
    let tokenizer = Tokenizer::Model(Arc::clone(&model));
    for (end, tokens) in [(End::AnswerBegins, 18), (End::Closed, 7), (End::Open, 5)] {
        let reader = PromptReader::with(&tokenizer, chat, None).ending(end).finish();
        assert_eq!(reader.tokens(), Tokens::new(tokens), "{end:?}");
    }
    // Which is what the model makes of the whole text at once.
    let text = "<|im_start|>user\nhello world<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(model.ids(text), expected);
    assert_eq!(model.ids("p"), [byte(b'p')]);

    let tokenizer = Tokenizer::Model(model);
    let spec = ChainSpec { block_size: NonZeroU32::new(1).unwrap(), salt: None };
    let reader = PromptReader::with(&tokenizer, chat, Some(spec)).finish();
    assert_eq!(reader.tokens(), Tokens::new(18));
    let keys = reader.into_chain().unwrap().into_keys();
    assert_eq!(keys.len(), 18);
    // The next turn begins with the same blocks, the answer's included.
    let next = [chat[0], Message { role: "assistant", content: "hello" }, chat[0]];
    let next = PromptReader::with(&tokenizer, next, Some(spec)).finish().into_chain().unwrap();
    let mut first = PromptReader::with(&tokenizer, chat, Some(spec)).finish().into_chain().unwrap();
    first.push_token(Token::Id(259));
    assert_eq!(first.keys(), &next.keys()[..19]);
    assert_eq!(first.keys()[..18], keys);
}

#[test]
fn marks_that_the_vocabulary_lacks_are_one_token_each_with_ids_beyond_it() {
    let other = changed("<|im_start|>", "<start>").replace("<|im_end|>", "<end>");
    let model = ModelTokenizer::from_json(other.as_bytes()).unwrap();
    let chat = [Message { role: "user", content: "hello" }];
    assert_eq!(token_ids::chat_ids(&model, &chat, End::Closed), [272, 267, 198, 259, 273, 198]);
    assert_eq!(model.name(273), "<|im_end|>");
}

fn load(models: &str, files: &[(&str, &str)]) -> Result<config::Config, String> {
    let responses = "
version: 1
responses:
  - { id: echo, match: { starts_with: [say] }, content: \"{last_user_message}\" }
  - { id: filler, match: { exact: [filler] }, synthetic: { tokens: 1000 } }
default: { content: \"hello world\" }
";
    let models = format!("version: 1\nmodels:\n{models}");
    let mut read = |path: &str| {
        let file = files.iter().find(|(name, _)| *name == path);
        file.map(|(_, text)| (*text).to_owned()).ok_or(format!("{path}: cannot be read"))
    };
    config::load_with(
        &Source::new("conf/models.yml", models),
        &Source::new("responses.yml", responses),
        &mut read,
    )
    .map_err(|problems| problems.to_string())
}

#[test]
fn a_models_tokenizer_cuts_its_answers_and_nobody_elses() {
    let models = "
  - { name: real, context_length: 100000, tokenizer: { file: hello.json } }
  - { name: again, context_length: 100000, tokenizer: { file: hello.json } }
  - { name: ours, context_length: 100000, tokenizer: regex }
";
    let config = load(models, &[("conf/hello.json", HELLO)]).unwrap();
    let [real, again, ours] = &config.models[..] else { panic!() };
    assert_eq!(real.tokenizer, again.tokenizer);
    assert_eq!(ours.tokenizer, Tokenizer::Regex);
    let ask =
        |input, tokenizer| config.responses.answer(&Query { input, tokenizer, ..Query::default() });
    let tokens = |script: &Script| -> Vec<(String, String)> {
        let token = |k| (script.piece(k).to_owned(), format!("{:?}", script.token(k)));
        (0..script.len().get()).map(token).collect()
    };
    let said = ask("x", &real.tokenizer);
    let two = [("hello", "Id(259)"), (" world", "Id(264)")];
    let two = two.map(|(piece, token)| (piece.to_owned(), token.to_owned()));
    assert_eq!(tokens(&said), two);
    assert_eq!(tokens(&ask("x", &again.tokenizer)), two);
    assert_eq!(ask("x", &ours.tokenizer).token(0), Token::Piece("hello"));
    // `say 你`: s, a, y, a space, and two halves.
    let echo = ask("say 你", &real.tokenizer);
    assert_eq!((echo.len().get(), echo.text().as_str()), (6, "say 你"));
    assert_eq!((echo.piece(4), echo.piece(5), echo.escaped(4)), ("", "你", &b""[..]));
    assert_eq!(Output::content(echo).token(5), Token::Id(254));
}

#[test]
fn filler_has_as_many_tokens_as_were_asked_for_and_is_cut_into_them_again() {
    // It has no word of one token, so ordinary filler is cut.
    let tokenizer = Tokenizer::Model(hello());
    let script = Script::filler("f".into(), &tokenizer, Seed::new(5), Tokens::new(1000));
    assert_eq!(script.len(), Tokens::new(1000));
    let text = script.text();
    assert_eq!(tokenizer.count(&text), Tokens::new(1000));

    // With words of one token nothing is cut or stored: each token is a word.
    let mut vocabulary = String::new();
    let mut merges = String::new();
    let words = [
        ["o", "f"],
        ["t", "o"],
        ["i", "n"],
        ["i", "s"],
        ["i", "t"],
        ["a", "s"],
        ["b", "e"],
        ["b", "y"],
    ];
    for (at, [one, other]) in words.iter().enumerate() {
        let (word, whole) = (280 + 2 * at, 281 + 2 * at);
        vocabulary += &format!(r#", "{one}{other}": {word}, "Ġ{one}{other}": {whole}"#);
        merges += &format!(r#", ["{one}", "{other}"], ["Ġ", "{one}{other}"]"#);
    }
    let rich = changed(r#""łå": 269"#, &format!(r#""łå": 269{vocabulary}"#))
        .replace(r#"[ "ł", "å" ]"#, &format!(r#"[ "ł", "å" ]{merges}"#));
    let tokenizer = Tokenizer::Model(Arc::new(ModelTokenizer::from_json(rich.as_bytes()).unwrap()));
    let filler = |len| Script::filler("f".into(), &tokenizer, Seed::new(5), Tokens::new(len));
    let long = filler(1_000_000);
    // Those eight, and " world".
    assert!((0..1000).all(|k| matches!(long.token(k), Token::Id(264 | 281..=295))));
    assert_eq!(tokenizer.count(&filler(5000).text()), Tokens::new(5000));
    assert!(long.text().starts_with(&filler(10).text()));
}

#[test]
fn a_stop_string_is_found_across_the_tokens_of_a_model() {
    let tokenizer = Tokenizer::Model(hello());
    let table = PieceTable::cut("hello 你 world".to_owned(), &tokenizer);
    let script = Script::from_table("x".into(), Arc::new(table));
    // hello, a space, two halves, " world".
    assert_eq!(script.len(), Tokens::new(5));
    let stops = Stops { strings: &["你 w"], keeps_match: false, after: Tokens::ZERO };
    let stopped = stop::apply(script, Tokens::new(100), &stops);
    assert_eq!((stopped.by, stopped.script.text().as_str()), (Some(0), "hello "));
    assert_eq!(stopped.script.len(), Tokens::new(5), "every token counts");
}

#[test]
fn what_is_wrong_with_a_tokenizer_is_told_with_its_place() {
    let model = "\n  - { name: m, context_length: 100, tokenizer: WHICH }\n";
    let check = |which: &str, file: &str, words: &[&str]| {
        let problems = load(&model.replace("WHICH", which), &[("conf/t.json", file)]).unwrap_err();
        for words in words {
            assert!(problems.contains(words), "{which}: no {words:?} in {problems}");
        }
    };
    check("words", "", &["models[0].tokenizer", "one of `regex`"]);
    check("t.json", "", &["models[0].tokenizer", "write `tokenizer: { file: t.json }`"]);
    check("{ path: t.json }", "", &["`file` is missing", "unknown key `path`"]);
    let no_file =
        ["models[0].tokenizer.file", "conf/no.json: cannot be read", "where this file is"];
    check("{ file: no.json }", "", &no_file);
    check(
        "{ file: t.json }",
        "{}",
        &["conf/t.json: not a tokenizer.json", "not tokenizer_config.json"],
    );
    check("{ file: t.json }", "\u{1}", &["not a tokenizer.json"]);
    let foreign = changed(r#""type": "BPE""#, r#""type": "Telepathy""#);
    check("{ file: t.json }", &foreign, &["not a tokenizer.json"]);
    let random = changed(r#""dropout": null"#, r#""dropout": 0.1"#);
    check("{ file: t.json }", &random, &["drops merges at random", "set `dropout` to null"]);
    // What the library panics on.
    for (decoder, normalizer) in [
        (r#"{"type": "Strip", "content": "a", "start": 0, "stop": 2}"#, "null"),
        ("null", r#"{"type": "Precompiled", "precompiled_charsmap": "AAA="}"#),
    ] {
        let hostile = small(WORD_LEVEL, normalizer, decoder);
        check("{ file: t.json }", &hostile, &["conf/t.json: not a tokenizer.json", "panics"]);
    }
    // What would make a million letters of one, and then a million of each of those.
    let grow = r#"{"type": "Replace", "pattern": {"Regex": "."}, "content": "aaaaaaaaaa"}"#;
    let grows = format!(r#"{{"type": "Sequence", "normalizers": [{}]}}"#, [grow; 12].join(","));
    let grows_back = format!(r#"{{"type": "Sequence", "decoders": [{}]}}"#, [grow; 12].join(","));
    let nested = format!(r#"{{"type": "Sequence", "normalizers": [{grows}, {grows}]}}"#);
    for (normalizer, decoder, part) in [
        (&*grows, "null", "its normalizer makes"),
        (&*nested, "null", "its normalizer makes"),
        ("null", &*grows_back, "its decoder makes"),
    ] {
        let hostile = small(WORD_LEVEL, normalizer, decoder);
        let limit = "a text may become 16 times as long, and no longer";
        check("{ file: t.json }", &hostile, &["conf/t.json: ", part, limit]);
    }
    let bytes = r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}"#;
    let cutters =
        format!(r#"{{"type": "Sequence", "pretokenizers": [{}]}}"#, [bytes; 60].join(","));
    let hostile = small(WORD_LEVEL, "null", "null")
        .replace(r#""pre_tokenizer": null"#, &format!(r#""pre_tokenizer": {cutters}"#));
    check("{ file: t.json }", &hostile, &["its pre_tokenizer makes"]);
    let long = grow.replace("aaaaaaaaaa", &"a".repeat(257));
    let hostile = small(WORD_LEVEL, &long, "null");
    check("{ file: t.json }", &hostile, &["puts in a text of 257 bytes; the most are 256"]);
    let steps = format!(
        r#"{{"type": "Sequence", "normalizers": [{}]}}"#,
        ["{\"type\": \"NFC\"}"; 129].join(",")
    );
    let hostile = small(WORD_LEVEL, &steps, "null");
    check("{ file: t.json }", &hostile, &["its normalizer has 129 steps; the most are 128"]);
    let fuses = [r#"{"type": "Fuse"}"#; 129].join(",");
    let hostile =
        small(WORD_LEVEL, "null", &format!(r#"{{"type": "Sequence", "decoders": [{fuses}]}}"#));
    check("{ file: t.json }", &hostile, &["its decoder has 129 steps; the most are 128"]);
    // Texts that are put in before, or back.
    let prepend = format!(r#"{{"type": "Prepend", "prepend": "{}"}}"#, "a".repeat(257));
    let hostile = small(WORD_LEVEL, &prepend, "null");
    check("{ file: t.json }", &hostile, &["its normalizer puts in a text of 257 bytes"]);
    let hostile = small(WORD_LEVEL, "null", &long);
    check("{ file: t.json }", &hostile, &["its decoder puts in a text of 257 bytes"]);
    // What grows only of letters that stand together as it puts them in: to 2^13 times as much.
    let pair = r#"{"type": "Replace", "pattern": {"String": "xy"}, "content": "xyxy"}"#;
    let pairs = format!(r#"{{"type": "Sequence", "normalizers": [{}]}}"#, [pair; 12].join(","));
    let hostile = small(WORD_LEVEL, &pairs, "null");
    check("{ file: t.json }", &hostile, &["its normalizer makes", "of the 4 of \"xyxy\""]);
}

/// What the parts of published tokenizers that change texts most do to them.
#[test]
fn the_normalizers_and_decoders_of_real_models_pass() {
    let replace = |from: &str, to: &str| {
        format!(r#"{{"type": "Replace", "pattern": {{"String": "{from}"}}, "content": "{to}"}}"#)
    };
    let sequence =
        |of: &str, all: &[&str]| format!(r#"{{"type": "Sequence", "{of}": [{}]}}"#, all.join(","));
    let prepend = r#"{"type": "Prepend", "prepend": "▁"}"#;
    let fallback = [r#"{"type": "ByteFallback"}"#, r#"{"type": "Fuse"}"#];
    let strip = r#"{"type": "Strip", "content": " ", "start": 1, "stop": 0}"#;
    let bert = r#"{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
        "strip_accents": null, "lowercase": true}"#;
    let pieces = r###"{"type": "WordPiece", "prefix": "##", "cleanup": true}"###;
    let compatible = [r#"{"type": "NFKD"}"#, r#"{"type": "StripAccents"}"#];
    let metaspace = r#"{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
        "split": true}"#;
    let bytes = r#"{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
        "use_regex": true}"#;
    let [space, back] = [replace(" ", "▁"), replace("▁", " ")];
    let quotes = [replace("``", "\\\""), replace("''", "\\\"")];
    for (normalizer, pre_tokenizer, decoder) in [
        // Llama 2 and Gemma.
        (
            sequence("normalizers", &[prepend, &space]),
            "null",
            sequence("decoders", &[&back, fallback[0], fallback[1], strip]),
        ),
        // BERT.
        (bert.to_owned(), r#"{"type": "BertPreTokenizer"}"#, pieces.to_owned()),
        // ALBERT.
        (
            sequence(
                "normalizers",
                &[&quotes[0], &quotes[1], compatible[0], compatible[1], r#"{"type": "Lowercase"}"#],
            ),
            metaspace,
            metaspace.to_owned(),
        ),
        // GPT-2, Qwen and most others.
        (r#"{"type": "NFC"}"#.to_owned(), bytes, bytes.to_owned()),
    ] {
        let file = small(WORD_LEVEL, &normalizer, &decoder)
            .replace(r#""pre_tokenizer": null"#, &format!(r#""pre_tokenizer": {pre_tokenizer}"#));
        assert_eq!(ModelTokenizer::from_json(file.as_bytes()).err(), None, "{file}");
    }
    // As long as a text may become: 64 letters of it are 16 times 64 and 1,024 bytes, which is 32
    // bytes for each.
    for (bytes, passes) in [(32, true), (33, false)] {
        let grow = format!(
            r#"{{"type": "Replace", "pattern": {{"Regex": "."}}, "content": "{}"}}"#,
            "a".repeat(bytes)
        );
        let file = small(WORD_LEVEL, &grow, "null");
        assert_eq!(ModelTokenizer::from_json(file.as_bytes()).is_ok(), passes, "{bytes}");
    }
}

#[test]
fn a_byte_order_mark_says_nothing() {
    let plain = small(WORD_LEVEL, "null", "null");
    let marked = format!("\u{feff}{plain}");
    let read = |json: &str| ModelTokenizer::from_json(json.as_bytes()).expect("well-formed");
    assert_eq!(read(&marked), read(&plain));
}

const WORD_LEVEL: &str =
    r#"{"type": "WordLevel", "vocab": {"a": 3, "[UNK]": 7}, "unk_token": "[UNK]"}"#;

/// A tokenizer of this model.
fn small(model: &str, normalizer: &str, decoder: &str) -> String {
    format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": {normalizer}, "pre_tokenizer": null, "post_processor": null,
            "decoder": {decoder}, "model": {model}}}"#
    )
}

#[test]
fn a_tokenizer_that_makes_no_tokens_of_prose_has_filler_of_the_length_asked_for() {
    let delete = r#"{"type": "Replace", "pattern": {"Regex": "."}, "content": ""}"#;
    let bytes = r#"{"type": "BPE", "vocab": {"a": 3, "b": 4, "ab": 5}, "merges": ["a b"]}"#;
    for (model, normalizer) in [(WORD_LEVEL, "null"), (bytes, delete), (bytes, "null")] {
        let json = small(model, normalizer, "null");
        let tokenizer = Tokenizer::Model(Arc::new(
            ModelTokenizer::from_json(json.as_bytes()).expect("well-formed"),
        ));
        for len in [1, 20, 5_000] {
            let filler = Script::filler("x".into(), &tokenizer, Seed::new(1), Tokens::new(len));
            assert_eq!(filler.len(), Tokens::new(len), "{json}");
        }
    }
}
