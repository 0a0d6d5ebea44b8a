//! Texts of all kinds, made from seeds: what must hold for every one of them. A seed that ever
//! failed stays in the list of the test that it failed.

use std::num::NonZeroU32;

use llmsim_engine::escape::json_string_content;
use llmsim_engine::seed::{Generator, Seed};
use llmsim_engine::text::prompt::{self, BEFORE_ANSWER, ChainSpec, Message, PER_MESSAGE};
use llmsim_engine::text::prompt::{Progress, PromptReader};
use llmsim_engine::text::template::{Template, Values};
use llmsim_engine::text::tokenizer::{self, MAX_PIECE};
use llmsim_engine::units::Tokens;

/// What texts are made of: characters of every class and width, and runs that tokenizers and
/// escapes treat apart.
const PARTS: [&str; 44] = [
    "a",
    "B",
    "the",
    "Hamlet",
    "don't",
    "'s",
    "'",
    "supercalifragilisticexpialidocious",
    " ",
    "  ",
    "                 ",
    "\n",
    "\r\n",
    "\n\n",
    "\t",
    "1",
    "42",
    "1234567",
    "3.14",
    ".",
    ",",
    "...",
    "!?",
    "{",
    "}}",
    "\"",
    "\\",
    "-----------------------",
    "\u{0}",
    "\u{1f}",
    "\u{7f}",
    "\u{85}",
    "\u{2028}",
    "\u{a0}",
    "\u{3000}",
    "é",
    "e\u{301}",
    "ß",
    "Привет",
    "你好",
    "한국어",
    "😀",
    "👩\u{200D}👩\u{200D}👧",
    "٣٤",
];

pub(super) fn text(random: &mut Generator, most_parts: u64) -> String {
    let parts = random.below(most_parts + 1);
    (0..parts).map(|_| PARTS[random.below(PARTS.len() as u64) as usize]).collect()
}

fn for_each_seed(check: impl Fn(&mut Generator)) {
    for seed in 0..3_000 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check(&mut Seed::new(seed).generator());
        }));
        if let Err(panic) = result {
            eprintln!("this was seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn pieces_put_together_are_the_text_and_short() {
    for_each_seed(|random| {
        let text = text(random, 30);
        let pieces: Vec<&str> = tokenizer::pieces(&text).collect();
        assert_eq!(pieces.concat(), text);
        assert_eq!(tokenizer::count(&text).get() as usize, pieces.len());
        for piece in pieces {
            assert!((1..=MAX_PIECE).contains(&piece.len()), "{piece:?} of {text:?}");
        }
    });
}

#[test]
fn an_answer_that_was_cut_off_is_the_same_tokens_in_the_next_turn() {
    for_each_seed(|random| {
        let text = text(random, 20);
        let pieces: Vec<&str> = tokenizer::pieces(&text).collect();
        for cut in 0..=pieces.len() {
            let sent = pieces[..cut].concat();
            let again: Vec<&str> = tokenizer::pieces(&sent).collect();
            assert_eq!(again, pieces[..cut], "{text:?}");
        }
    });
}

#[test]
fn escaping_a_text_is_escaping_its_characters() {
    for_each_seed(|random| {
        let text = text(random, 30);
        let mut whole = Vec::new();
        json_string_content(&text, &mut whole);
        let mut parts = Vec::new();
        for c in text.chars() {
            json_string_content(c.encode_utf8(&mut [0; 4]), &mut parts);
        }
        assert_eq!(whole, parts);
        let json = format!("\"{}\"", String::from_utf8(whole).unwrap());
        assert_eq!(sonic_rs::from_str::<String>(&json).unwrap(), text);
    });
}

fn chat(random: &mut Generator) -> Vec<(&'static str, String)> {
    let turns = 1 + random.below(4);
    let mut chat = Vec::new();
    if random.below(2) == 0 {
        chat.push(("system", text(random, 10)));
    }
    for turn in 0..turns {
        chat.push((["user", "assistant"][turn as usize % 2], text(random, 15)));
    }
    chat
}

fn messages<'a>(chat: &'a [(&'a str, String)]) -> impl Iterator<Item = Message<'a>> {
    chat.iter().map(|(role, content)| Message { role, content })
}

fn keys_with_answer(
    chat: &[(&str, String)],
    spec: ChainSpec<'_>,
    answer: &[&str],
    slice: usize,
) -> (Tokens, Vec<u64>) {
    let mut reader = PromptReader::new(messages(chat), Some(spec));
    while reader.step(slice) == Progress::More {}
    let tokens = reader.tokens();
    let mut chain = reader.into_chain().unwrap();
    answer.iter().for_each(|piece| chain.push(piece));
    (tokens, chain.into_keys())
}

#[test]
fn the_next_turn_shares_every_full_block_of_prompt_and_answer() {
    for_each_seed(|random| {
        let mut chat = chat(random);
        let block_size = NonZeroU32::new(1 + random.below(20) as u32).unwrap();
        let salt = ["", "tenant"][random.below(2) as usize];
        let spec = ChainSpec { block_size, salt: Some(salt) };
        let answer = text(random, 30);
        let pieces: Vec<&str> = tokenizer::pieces(&answer).collect();
        let sent = &pieces[..random.below(pieces.len() as u64 + 1) as usize];

        let slice = 1 + random.below(50) as usize;
        let (prompt, keys) = keys_with_answer(&chat, spec, sent, slice);
        assert_eq!(prompt, prompt::count(messages(&chat)));
        let contents: u32 = chat.iter().map(|(_, text)| tokenizer::count(text).get()).sum();
        let overhead = PER_MESSAGE.get() * chat.len() as u32 + BEFORE_ANSWER.get();
        assert_eq!(prompt.get(), contents + overhead);
        assert_eq!(keys.len() as u32, (prompt.get() + sent.len() as u32) / block_size);

        chat.push(("assistant", sent.concat()));
        chat.push(("user", text(random, 10)));
        let (_, next) = keys_with_answer(&chat, spec, &[], usize::MAX);
        assert_eq!(next[..keys.len()], keys);
    });
}

#[test]
fn a_changed_character_changes_every_key_from_its_block_on() {
    for_each_seed(|random| {
        let text = text(random, 40);
        let spec = ChainSpec { block_size: NonZeroU32::new(4).unwrap(), salt: None };
        let changed = text.replacen(['a', '1'], "z", 1);
        if changed == text {
            return;
        }
        let (_, a) = keys_with_answer(&[("user", text.clone())], spec, &[], usize::MAX);
        let (_, b) = keys_with_answer(&[("user", changed)], spec, &[], usize::MAX);
        let same = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
        assert!(a[same..].iter().all(|key| !b.contains(key)), "{text:?}");
    });
}

#[test]
fn a_text_with_its_braces_doubled_renders_as_itself() {
    for_each_seed(|random| {
        let text = text(random, 30);
        let source = text.replace('{', "{{").replace('}', "}}");
        let template = Template::compile(&source, &[]).unwrap();
        assert_eq!(template, Template::Fixed(text.clone()));

        let around = format!("{source}{{last_user_message}}{source}");
        let message = "{model}";
        let values = Values { last_user_message: message, model: "m" };
        let rendered = Template::compile(&around, &[]).unwrap().render(values, |_| "");
        assert_eq!(rendered, format!("{text}{message}{text}"));
    });
}
