//! A model with a real tokenizer: its ids and counts on every route.

use llmsim_engine::config::{self, Source};
use llmsimulator::args::Settings;
use llmsimulator::boot::Server;

use crate::client::{Client, content_of, streaming, whole};
use crate::fixture;

/// Worked out in `engine/tests/it/model_tokenizer.rs`.
const HELLO: &str = include_str!("../../../engine/tests/tokenizers/hello.json");

/// `real` with that tokenizer, and `ours` without.
fn start() -> Server {
    start_with(|_| ())
}

fn start_with(change: impl FnOnce(&mut Settings)) -> Server {
    let models = "
version: 1
models:
  - { name: real, context_length: 1000, tokenizer: { file: hello.json } }
  - { name: ours, context_length: 1000 }
";
    let responses = "
version: 1
responses:
  - { id: echo, match: { starts_with: [say] }, content: \"{last_user_message}\" }
  - { id: filler, match: { exact: [filler] }, synthetic: { tokens: 100 } }
default: { content: \"hello world\" }
";
    fixture::start_with(|settings| {
        let (models, responses) = (Source::new("m", models), Source::new("r", responses));
        settings.config = config::load_with(&models, &responses, &mut |_| Ok(HELLO.to_owned()))
            .unwrap_or_else(|problems| panic!("{problems}"));
        change(settings);
    })
}

#[test]
fn prompts_and_answers_are_counted_as_the_model_does() {
    let server = start();
    let mut client = Client::new(&server);
    // Two marks and two line feeds around `user`, a line feed and two words, then a mark, nine letters
    // and a line feed: 18. `hello world` is two tokens.
    let usage = |prompt, completion| {
        format!(r#""prompt_tokens":{prompt},"completion_tokens":{completion},"#)
    };
    let response = client.chat(&whole("real", "hello world"));
    assert!(response.text().contains(&usage(18, 2)), "{}", response.text());
    // Ours: two words, 4 around them and 3 behind.
    let response = client.chat(&whole("ours", "hello world"));
    assert!(response.text().contains(&usage(9, 2)), "{}", response.text());
    let response = client.chat(&whole("real", "filler"));
    assert!(response.text().contains(r#""completion_tokens":100,"#), "{}", response.text());
}

#[test]
fn every_port_of_a_replica_counts_as_the_shared_one() {
    let server = start_with(|settings| settings.port_per_replica = Some(0));
    let shared = std::iter::once(server.address());
    let real = server.replica_addresses()[0];
    for address in shared.chain([real]) {
        let response = Client::to(address).chat(&whole("real", "hello world"));
        let usage = r#""prompt_tokens":18,"completion_tokens":2,"#;
        assert!(response.text().contains(usage), "{address}: {}", response.text());
    }
}

#[test]
fn half_a_character_is_a_chunk_without_text() {
    let server = start();
    let mut client = Client::new(&server);
    let response = client.chat(&streaming("real", "say 你好"));
    assert_eq!(response.streamed_text(), "say 你好");
    let events = response.events();
    let pieces: Vec<String> =
        events[1..events.len() - 2].iter().map(|event| content_of(event)).collect();
    assert_eq!(pieces, ["s", "a", "y", " ", "", "你", "", "好"]);
    // A limit in the middle of a character: the token counts, its text never comes.
    let cut = streaming("real", "say 你好").replace("\"stream\"", "\"max_tokens\":7,\"stream\"");
    assert_eq!(client.chat(&cut).streamed_text(), "say 你");
}

#[test]
fn ids_are_those_of_the_vocabulary_and_lead_back() {
    let server = start();
    let mut client = Client::new(&server);
    let mut ask = |path: &str, body: &str| {
        client.post(path, body);
        client.response().text().to_owned()
    };
    let tokens =
        ask("/tokenize", r#"{"model":"real","prompt":"hello world","return_token_strs":true}"#);
    assert!(tokens.contains(r#""tokens":[259,264]"#), "{tokens}");
    assert!(tokens.contains(r#""token_strs":["hello","Ġworld"]"#), "{tokens}");
    let chat = ask(
        "/tokenize",
        r#"{"model":"real","messages":[{"role":"user","content":"hello"}],"add_generation_prompt":false}"#,
    );
    assert!(chat.contains(r#""count":6,"#), "{chat}");
    assert!(chat.contains(r#""tokens":[270,267,198,259,271,198]"#), "{chat}");
    let text = ask("/detokenize", r#"{"model":"real","tokens":[270,259,264]}"#);
    assert!(text.contains(r#""prompt":"<|im_start|>hello world""#), "{text}");
    let unknown = ask("/detokenize", r#"{"model":"real","tokens":[259,5000]}"#);
    assert!(unknown.contains(r#""param":"tokens[1]""#), "{unknown}");
    // As a prompt they are the same as the text.
    let completion =
        ask("/v1/completions", r#"{"model":"real","prompt":[82,64,88,220,259],"echo":true}"#);
    assert!(completion.contains(r#""prompt_tokens":5,"#), "{completion}");
}

/// 你 is E4 BD A0, and its first two bytes are one token; 好 is E5 A5 BD, and its first byte is one with
/// the last of 你.
#[test]
fn a_part_of_a_character_has_its_own_bytes_in_the_scores() {
    let server = start();
    let mut client = Client::new(&server);
    let scored = |text: &str, more: &str| {
        whole("real", text)
            .replace("\"messages\"", &format!("\"logprobs\":true{more},\"messages\""))
    };
    let bytes_of = |answer: &str| -> Vec<String> {
        let parts = answer.split("\"bytes\":[").skip(1);
        parts.map(|part| part.split_once(']').unwrap().0.to_owned()).collect()
    };
    let answer = client.chat(&scored("say 你", ""));
    assert_eq!(bytes_of(answer.text()), ["115", "97", "121", "32", "228,189", "160"]);
    let answer = client.chat(&scored("say 你好", ""));
    let parts = ["115", "97", "121", "32", "228,189", "160,229", "165", "189"];
    assert_eq!(bytes_of(answer.text()), parts);
    assert!(answer.text().contains("{\"token\":\"\u{fffd}\",\"logprob\":-"), "{}", answer.text());
    // The token that was chosen is the likeliest, byte for byte.
    let answer = client.chat(&scored("say 你", ",\"top_logprobs\":1"));
    assert_eq!(bytes_of(answer.text())[8..], ["228,189", "228,189", "160", "160"]);
}

/// The prompt's tokens are those that `usage` counts, and the answer, which says the same, has the same.
#[test]
fn an_echoed_prompt_is_scored_by_the_tokens_of_the_model() {
    let server = start();
    let mut client = Client::new(&server);
    let mut ask = |prompt: &str| {
        let body = format!(r#"{{"model":"real","prompt":{prompt},"echo":true,"logprobs":0}}"#);
        client.post("/v1/completions", &body);
        client.response().text().to_owned()
    };
    let text = ask(r#""say 你好""#);
    let once = r#""s","a","y"," ","","你","","好""#;
    assert!(text.contains(&format!(r#""tokens":[{once},{once}]"#)), "{text}");
    let places = "0,1,2,3,4,4,5,5,6,7,8,9,10,10,11,11";
    assert!(text.contains(&format!(r#""text_offset":[{places}]"#)), "{text}");
    assert!(text.contains(r#""prompt_tokens":8,"completion_tokens":8,"#), "{text}");
    // Ids need not be those that their text would be cut into: five letters, and not `hello`.
    let ids = ask("[71,68,75,75,78]");
    assert!(ids.contains(r#""prompt_tokens":5,"#), "{ids}");
    assert!(ids.contains(r#""tokens":["h","e","l","l","o","hello"," world"]"#), "{ids}");
}

/// The vocabulary has the ids 0 to 271.
#[test]
fn a_prompt_has_no_ids_that_the_vocabulary_lacks() {
    let server = start();
    let mut client = Client::new(&server);
    for (path, input, param) in [
        ("/v1/completions", r#""prompt":[259,99999]"#, "prompt[1]"),
        ("/v1/completions", r#""prompt":[[259],[259,264,99999]]"#, "prompt[1][2]"),
        ("/v1/completions/render", r#""prompt":[99999]"#, "prompt[0]"),
        ("/v1/embeddings", r#""input":[99999]"#, "input[0]"),
        ("/generate", r#""input_ids":[259,99999]"#, "input_ids[1]"),
    ] {
        let answer_of = |client: &mut Client, model: &str| {
            client.post(path, &format!(r#"{{"model":"{model}",{input}}}"#));
            client.response()
        };
        let refused = answer_of(&mut client, "real");
        assert_eq!(refused.status, 400, "{path} {input}: {}", refused.text());
        assert!(refused.text().contains("token id 99999 is out of"), "{}", refused.text());
        assert!(refused.text().contains(&format!("\"param\":\"{param}\"")), "{}", refused.text());
        // Without a vocabulary there is none to lack it.
        assert_eq!(answer_of(&mut client, "ours").status, 200, "{path} {input}");
    }
}
