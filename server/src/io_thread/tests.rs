//! Bursts, played by hand on one thread: the test is the runtime's main task and decides when the
//! dispatcher has its turn, so what happens between two sends is counted and not timed.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream as StdStream};

use llmsim_engine::config::{self, Source};
use llmsim_engine::observe::WindowSizes;
use llmsim_engine::sim::{Finish, What};
use llmsim_engine::units::{JobId, SimSpan, Tokens};
use socket2::SockRef;

use super::*;
use crate::args::{ApiKeys, MetricsSettings, SummarySizes};
use crate::helper::{self, HelperThread};
use crate::metrics::observatory::Shards;
use crate::ring::{Reporter, reports};
use crate::served::{Home, Limits, Model, Replica, Scope, Served, Sleep, Sleepers};

/// An I/O thread whose one GPU thread is the test, and that makes the answers of `now` itself.
struct Stage {
    io: Rc<Io>,
    gates: Vec<Rc<Io>>,
    door: Door,
    inbox: Arc<Inbox>,
    reporter: Reporter,
    listener: TcpListener,
    /// Who works only if the test lets them.
    helpers: HelperThread,
    /// Tokens published so far for each stream.
    published: u32,
}

const RING: usize = 4096;

impl Stage {
    async fn new() -> Self {
        Self::with(SendBatch::with_ring().unwrap_or_else(|_| SendBatch::one_by_one())).await
    }

    async fn with(batch: SendBatch) -> Self {
        let models = "
version: 1
hardware:
  gpu: { hbm_gib: 80, memory_bandwidth_gbps: 3000, peak_tflops: 989 }
models:
  - { name: now, context_length: 1000000 }
  - name: gpu
    context_length: 100000
    engine: scheduler
    hardware: gpu
    weights: { parameters_billion: 1, bytes_per_parameter: 2 }
    kv_cache: { bytes_per_token: 1024 }
    scheduler: { max_batch_tokens: 8192, max_num_sequences: 256 }
";
        let responses = "version: 1\ndefault: { content: \"One two three four.\" }\n";
        let config = config::load(&Source::new("m", models), &Source::new("r", responses)).unwrap();
        let clock = Clock::start();
        let shard = Arc::new(IoShard::new(2, 100));
        let sizes = SummarySizes {
            request_samples: 10,
            token_samples: 10,
            rate_window: Duration::from_secs(1),
        };
        let observatory = Observatory::new(
            clock,
            &config.models,
            Vec::new(),
            Shards { io: vec![Arc::clone(&shard)], gpu: Vec::new() },
            MetricsSettings::default(),
            sizes,
            Arc::new(crate::faults::Faults::none()),
        );
        let engine = config.models[0].engine.build();
        let homes = [Home::Here { seat: 0 }, Home::Thread { thread: 0, seat: 0 }];
        let models =
            config.models.into_iter().zip(homes).enumerate().map(|(place, (model, home))| {
                let replica = Replica { number: 0, place, home };
                Model::new(model.name, model.context_length, model.engine, vec![replica])
            });
        let hour = SimSpan::from_ms(3_600_000);
        let served = Arc::new(Served {
            models: models.collect(),
            responses: Arc::new(config.responses),
            started: 0,
            fingerprint: "fp".to_owned(),
            limits: Limits {
                body: 1 << 20,
                head: hour,
                body_time: hour,
                idle: hour,
                stall: hour,
                connections: 10_000,
            },
            api_keys: ApiKeys::default(),
            sleep: Sleep::new(Arc::new(Sleepers::new(2)), vec![0, 1]),
            scope: Scope::Server,
            vocabulary: Arc::default(),
            adapters: Arc::default(),
            stored: Arc::default(),
            faults: Arc::new(crate::faults::Faults::none()),
            downs: Arc::new([]),
            has_admin: false,
        });
        let door = Door::new();
        let (reporter, ring) = reports(RING, Arc::clone(&door.bell));
        let inbox = Arc::new(Inbox::new());
        inbox.bell.serve_thread(std::thread::current());
        let figures = Arc::new(Figures::new(
            Tokens::new(1_000_000),
            WindowSizes { requests: 10, tokens: 10 },
        ));
        let (helper, helpers) = helper::queue(1);
        let (hall, gates) = IoThread {
            number: 0,
            clock,
            gates: vec![served],
            door: Arc::new(Door::new()),
            rings: vec![ring],
            inboxes: vec![Arc::clone(&inbox)],
            helper: helper.clone(),
            metrics_helper: helper,
            tls: None,
            control: Arc::new(Control::new(Vec::new())),
            shard,
            here: vec![(engine, figures)],
            observatory: Arc::new(observatory),
            entropy: 1,
        }
        .enter(batch);
        monoio::spawn(pass_the_turn(hall));
        // Whoever waits for a task lets those before it run, so the passer stands ready.
        monoio::spawn(async {}).await;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let io = Rc::clone(&gates[0]);
        Self { io, gates, door, inbox, reporter, listener, helpers, published: 0 }
    }

    /// A client that has sent this; its socket waits at the door.
    fn client(&self, request: &[u8]) -> StdStream {
        let mut client = StdStream::connect(self.listener.local_addr().unwrap()).unwrap();
        client.write_all(request).unwrap();
        client.set_nonblocking(true).unwrap();
        let (socket, _) = self.listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        self.io.control.connection_opened();
        self.door.arrivals.push(Arrival { socket, gate: 0, turned_away: false }).unwrap();
        client
    }

    /// So many streams that the GPU thread has taken, and their clients.
    async fn streams(&mut self, count: usize) -> (Vec<StdStream>, Vec<JobId>) {
        let clients = (0..count).map(|_| self.client(&ask("gpu", true, 1000))).collect();
        let mut jobs = Vec::new();
        while jobs.len() < count {
            self.dispatch().await;
            self.io.give_way().await;
            while let Some(order) = self.inbox.pop() {
                let Order::Submit { job, at, .. } = order else { panic!("{order:?}") };
                self.reporter.publish(Report::Queued(job.id, at));
                jobs.push(job.id);
            }
        }
        (clients, jobs)
    }

    /// One more token of each. The bell is not rung: it would wake the test itself.
    fn publish(&mut self, jobs: &[JobId]) {
        self.published += 1;
        let at = self.io.clock.now();
        for &job in jobs {
            let what = What::Token { index: Tokens::new(self.published), finish: None };
            self.reporter.publish(Report::Event(Event { at, job, what }, at));
        }
    }

    /// One turn of the dispatcher.
    async fn dispatch(&self) {
        poll_fn(|cx| {
            assert!(self.io.dispatch(cx, &self.gates, &self.door).is_pending());
            Poll::Ready(())
        })
        .await;
    }

    /// Tokens of the GPU's streams that the kernel has taken.
    fn sent(&self) -> u64 {
        self.io.shard.replicas[1].read().tokens
    }
}

fn ask(model: &str, stream: bool, tokens: u32) -> Vec<u8> {
    let body = format!(
        r#"{{"model":"{model}","stream":{stream},"ignore_eos":true,"max_tokens":{tokens},"messages":[{{"role":"user","content":"Hello"}}]}}"#
    );
    let length = body.len();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// A request with a body.
fn post(path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: h\r\n{headers}content-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

const MODELS: &[u8] = b"GET /v1/models HTTP/1.1\r\nhost: h\r\n\r\n";

/// Runs a story as the main task of a runtime.
fn play<F: Future<Output = ()>>(story: impl FnOnce() -> F) {
    let (mut runtime, ..) = build_runtime(IoDriver::Epoll).unwrap();
    runtime.block_on(async { story().await });
}

#[test]
fn tokens_left_out_while_a_thread_was_far_behind_count_as_late_as_the_oldest_of_them() {
    play(|| async {
        let mut stage = Stage::new().await;
        let (_clients, jobs) = stage.streams(1).await;
        // All that there is room for is about a request that is long gone.
        let gone = JobId(u64::MAX);
        let token = |job, index, at| {
            let what = What::Token { index: Tokens::new(index), finish: None };
            Report::Event(Event { at, job, what }, at)
        };
        for index in 1.. {
            stage.reporter.publish(token(gone, index, SimTime::ZERO));
            if stage.reporter.merged() > 0 {
                break;
            }
        }
        // The first token is told of in any case; the next are due at once, the last not for an hour.
        let hour = stage.io.clock.now() + SimSpan::from_ms(3_600_000);
        (1..=5).for_each(|index| stage.reporter.publish(token(jobs[0], index, SimTime::ZERO)));
        while stage.reporter.is_behind() || stage.sent() < 1 {
            stage.reporter.deliver();
            stage.dispatch().await;
        }
        stage.reporter.publish(token(jobs[0], 6, hour));
        while stage.sent() < 6 {
            stage.dispatch().await;
        }
        let mut lags = Vec::new();
        stage.io.shard.replicas[1].window().since(0, usize::MAX, &mut lags);
        assert_eq!(lags.iter().filter(|&&lag| lag == 0).count(), 1, "{lags:?}");
        assert_eq!(lags.len(), 6);
    });
}

#[test]
fn of_many_sockets_at_once_few_are_taken_in_before_tokens_that_are_due_are_sent() {
    play(|| async {
        let mut stage = Stage::new().await;
        let (_clients, jobs) = stage.streams(5).await;
        let (accepted, sent) = (stage.io.shard.accepted.get(), stage.sent());
        let waiting: Vec<_> = (0..200).map(|_| stage.client(MODELS)).collect();
        for turn in 1..=200 / WELCOMES_PER_TURN as u64 {
            stage.publish(&jobs);
            stage.dispatch().await;
            assert_eq!(stage.io.shard.accepted.get() - accepted, turn * WELCOMES_PER_TURN as u64);
            assert_eq!(stage.sent() - sent, turn * 5);
        }
        stage.dispatch().await;
        assert_eq!(stage.io.shard.accepted.get() - accepted, waiting.len() as u64);
    });
}

#[test]
fn before_a_connection_does_its_own_work_it_sends_the_tokens_that_are_due() {
    play(|| async {
        let mut stage = Stage::new().await;
        let (_clients, jobs) = stage.streams(SENDS_BETWEEN_TASKS + 8).await;
        let sent = stage.sent();
        let mut other = stage.client(MODELS);
        stage.publish(&jobs);
        // Its socket is taken in, and from then on the dispatcher has no turn.
        let arrival = stage.door.arrivals.pop().unwrap();
        stage.io.welcome(arrival);
        let mut answer = [0; 12];
        while other.read(&mut answer).is_err() {
            assert!(stage.sent() - sent <= jobs.len() as u64);
            stage.io.give_way().await;
        }
        assert_eq!(&answer, b"HTTP/1.1 200");
        // It has had at least two turns by then, and each sends some.
        assert_eq!(stage.sent() - sent, jobs.len() as u64);
    });
}

#[test]
fn who_gives_way_waits_for_the_others_even_if_woken_for_something_else() {
    play(|| async {
        let stage = Stage::new().await;
        let order = Rc::new(RefCell::new(Vec::new()));
        let (io, log) = (Rc::clone(&stage.io), Rc::clone(&order));
        let polite = monoio::spawn(async move {
            // The end of an answer that is made at once does this to its own connection's task.
            poll_fn(|cx| {
                cx.waker().wake_by_ref();
                Poll::Ready(())
            })
            .await;
            io.give_way().await;
            log.borrow_mut().push("who gave way");
        });
        let log = Rc::clone(&order);
        let other = monoio::spawn(async move { log.borrow_mut().push("who stood behind") });
        polite.await;
        other.await;
        assert_eq!(*order.borrow(), ["who stood behind", "who gave way"]);
    });
}

#[test]
fn an_answer_made_at_once_takes_a_turn_to_make_and_a_turn_to_send_and_none_for_nothing() {
    play(|| async {
        let stage = Stage::new().await;
        let mut client = stage.client(&ask("now", false, 5));
        let socket = stage.door.arrivals.pop().unwrap().socket;
        let conn = Rc::new(Conn::new(TcpStream::from_std(socket).unwrap()));
        let turns = Rc::new(Cell::new(0));
        let (io, count) = (Rc::clone(&stage.io), Rc::clone(&turns));
        monoio::spawn(async move {
            let mut task = Box::pin(connection::serve(io, conn));
            poll_fn(|cx| {
                count.set(count.get() + 1);
                task.as_mut().poll(cx)
            })
            .await;
        });
        let mut answer = [0; 12];
        while client.read(&mut answer).is_err() {
            stage.io.give_way().await;
        }
        assert_eq!(&answer, b"HTTP/1.1 200");
        // What it may have been woken for besides.
        stage.io.give_way().await;
        stage.io.give_way().await;
        // The first of all found nothing to read yet.
        assert_eq!(turns.get(), 3);
    });
}

/// Of so many clients that have all asked, and are answered, how many waited to be answered together,
/// and how many answers a ring has sent.
async fn answered_together(clients: usize) -> (usize, usize) {
    let stage = Stage::new().await;
    let mut clients: Vec<_> = (0..clients).map(|_| stage.client(MODELS)).collect();
    while let Some(arrival) = stage.door.arrivals.pop() {
        stage.io.welcome(arrival);
    }
    for client in &mut clients {
        let mut answer = [0; 12];
        while client.read(&mut answer).is_err() {
            stage.io.give_way().await;
        }
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
    (stage.io.pass.borrow().most, stage.io.batch.borrow().by_ring)
}

#[test]
fn answers_that_are_ready_at_once_leave_together_unless_there_are_too_many() {
    play(|| async {
        // Most of them: the runtime stops to look at the test itself now and then.
        let (together, by_ring) = answered_together(20).await;
        assert!(together > 10, "{together}");
        if SendBatch::with_ring().is_ok() {
            assert!(by_ring > 10, "{by_ring}");
        }
        // The test itself waits, too, and nobody else.
        assert_eq!(answered_together(MOST_TOGETHER + 20).await, (1, 0));
    });
}

#[test]
fn answers_that_leave_together_come_whole_however_little_a_socket_takes() {
    const REQUESTS: usize = 200;
    play(|| async {
        let stage = Stage::new().await;
        SockRef::from(&stage.listener).set_send_buffer_size(4096).unwrap();
        let pipelined = MODELS.repeat(REQUESTS);
        let mut clients: Vec<_> = (0..6).map(|_| stage.client(&pipelined)).collect();
        while let Some(arrival) = stage.door.arrivals.pop() {
            stage.io.welcome(arrival);
        }
        // Nobody reads, until no socket takes more; one never does.
        for _ in 0..2 * REQUESTS {
            stage.io.give_way().await;
        }
        drop(clients.pop());
        for client in &mut clients {
            let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
            let count =
                |bytes: &[u8]| memchr::memmem::find_iter(bytes, "HTTP/1.1 200 OK\r\n").count();
            let ends = |bytes: &[u8]| bytes.ends_with(b"]}");
            let mut reads = 0;
            while count(&bytes) < REQUESTS || !ends(&bytes) {
                while let Ok(got @ 1..) = client.read(&mut buffer) {
                    bytes.extend_from_slice(&buffer[..got]);
                    reads += 1;
                }
                stage.io.give_way().await;
            }
            assert_eq!(count(&bytes), REQUESTS);
            assert_eq!(bytes.len() % REQUESTS, 0, "all answers are as long");
            assert!(reads > 2, "the socket held all of it");
        }
    });
}

#[test]
fn a_client_that_pipelines_lets_tokens_go_first_before_each_of_its_requests() {
    play(|| async {
        const REQUESTS: usize = 50;
        let mut stage = Stage::new().await;
        let (_clients, jobs) = stage.streams(1).await;
        let sent = stage.sent();
        let mut other = stage.client(&MODELS.repeat(REQUESTS));
        let arrival = stage.door.arrivals.pop().unwrap();
        stage.io.welcome(arrival);
        let (mut answers, mut buffer) = (Vec::new(), [0; 65536]);
        let count = |bytes: &[u8]| bytes.windows(12).filter(|w| w == b"HTTP/1.1 200").count();
        while count(&answers) < REQUESTS {
            // A token whenever the connection lets anybody else have a turn.
            stage.publish(&jobs);
            stage.io.give_way().await;
            let before = count(&answers);
            if let Ok(got) = other.read(&mut buffer) {
                answers.extend_from_slice(&buffer[..got]);
            }
            assert!(count(&answers) - before <= 1, "several requests without a look at the rings");
        }
        assert!(stage.sent() - sent >= REQUESTS as u64 - 1);
    });
}

#[test]
fn an_answer_of_a_million_tokens_is_made_in_slices_and_holds_up_nobody() {
    play(|| async {
        const TOKENS: u32 = 200_000;
        let mut stage = Stage::new().await;
        let (_clients, jobs) = stage.streams(1).await;
        let sent = stage.sent();
        let _whole = stage.client(&ask("now", false, TOKENS));
        let mut turns = 0;
        let made = |stage: &Stage| stage.io.shard.unstreamed_tokens.get();
        while made(&stage) < u64::from(TOKENS) {
            let before = made(&stage);
            stage.publish(&jobs);
            stage.dispatch().await;
            stage.io.give_way().await;
            turns += 1;
            // The connection's own turn and the dispatcher's.
            assert!(made(&stage) - before <= 2 * TOKENS_PER_TURN as u64);
            assert_eq!(stage.sent() - sent, turns);
        }
        assert!(turns >= u64::from(TOKENS) / (2 * TOKENS_PER_TURN as u64));
    });
}

#[test]
fn a_fast_reader_of_a_long_answer_gets_a_few_writes_and_then_others_have_their_turn() {
    play(|| async {
        let mut stage = Stage::new().await;
        let (_clients, jobs) = stage.streams(1).await;
        let sent = stage.sent();
        let mut reader = stage.client(&ask("now", true, 20_000));
        let (mut turns, mut bytes, mut buffer) = (0, 0, vec![0; 1 << 20]);
        let mut is_over = false;
        while !is_over {
            stage.publish(&jobs);
            stage.dispatch().await;
            stage.io.give_way().await;
            turns += 1;
            while let Ok(got) = reader.read(&mut buffer) {
                bytes += got;
                is_over = buffer[..got].ends_with(b"0\r\n\r\n");
            }
            assert_eq!(stage.sent() - sent, turns);
        }
        // 20,000 frames of some 300 bytes, at most two times two writes of 64 KiB a turn.
        assert!(bytes > 5_000_000 && turns >= bytes as u64 / (4 * 80 * 1024), "{bytes} {turns}");
    });
}

#[test]
fn a_unit_longer_than_many_writes_is_rendered_once_however_slowly_it_is_read() {
    play(|| async {
        let stage = Stage::new().await;
        std::thread::spawn({
            let helpers = stage.helpers.clone();
            move || helpers.run()
        });
        let words = "word ".repeat(20_000);
        // A scored prompt is the first token's unit; instructions come back with the head.
        let scored = format!(
            r#"{{"model":"now","stream":true,"echo":true,"logprobs":5,"max_tokens":4,"prompt":"{words}"}}"#
        );
        let instructed = format!(
            r#"{{"model":"now","stream":true,"max_output_tokens":16,"instructions":"{words}{words}","input":"Hello"}}"#
        );
        for (path, body) in [("/v1/completions", scored), ("/v1/responses", instructed)] {
            let mut reader = stage.client(&post(path, "", &body));
            let rendered = |stage: &Stage| stage.io.generations.borrow().rendered();
            let before = rendered(&stage);
            let (mut bytes, mut reads, mut buffer) = (0, 0, vec![0; 8 * 1024]);
            let mut is_over = false;
            while !is_over {
                stage.dispatch().await;
                stage.io.give_way().await;
                // A little at a time, so that the socket is full again and again.
                while let Ok(got) = reader.read(&mut buffer) {
                    bytes += got;
                    reads += 1;
                    is_over = buffer[..got].ends_with(b"0\r\n\r\n");
                    if is_over || reads % 8 == 0 {
                        break;
                    }
                }
            }
            let rendered = rendered(&stage) - before;
            assert!(bytes > 600_000, "{path}: {bytes}");
            // What is short may be rendered again, once for each of the few times it was cut.
            assert!(rendered < bytes + bytes / 4, "{path}: {rendered} rendered for {bytes}");
        }
    });
}

#[test]
fn a_long_body_is_searched_for_whom_a_fault_hits_by_a_helper() {
    play(|| async {
        let stage = Stage::new().await;
        let chat = |words: &str| {
            let message = format!(r#"{{"role":"user","content":"{words}"}}"#);
            let body = format!(r#"{{"model":"now","max_tokens":2,"messages":[{message}]}}"#);
            post("/v1/chat/completions", "x-llmsim-fault: status=503\r\n", &body)
        };
        // Until the answer is there, or nobody has anything to do any more.
        async fn answer(stage: &Stage, mut client: StdStream) -> Option<StdStream> {
            let mut status = [0; 12];
            for _ in 0..100 {
                stage.dispatch().await;
                stage.io.give_way().await;
                if client.read(&mut status).is_ok() {
                    assert_eq!(&status, b"HTTP/1.1 503");
                    return None;
                }
            }
            Some(client)
        }
        let short = stage.client(&chat("word"));
        assert!(answer(&stage, short).await.is_none());
        let long = stage.client(&chat(&"word ".repeat(10_000)));
        let mut waiting = answer(&stage, long).await;
        assert!(waiting.is_some(), "nobody has read it yet");
        std::thread::spawn({
            let helpers = stage.helpers.clone();
            move || helpers.run()
        });
        while let Some(client) = waiting {
            waiting = answer(&stage, client).await;
        }
    });
}

/// How a client of [`told`] reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    AtOnce,
    /// Nothing before the last token exists.
    AtTheEnd,
}

/// The body of the stream that `request` gets if its tokens come `at_once` at a time, and how many
/// bytes were rendered while tokens were due.
async fn told(
    stage: &mut Stage,
    request: &[u8],
    (tokens, at_once): (u32, u32),
    reads: Reads,
) -> (String, usize) {
    let mut client = stage.client(request);
    let job = loop {
        stage.dispatch().await;
        stage.io.give_way().await;
        if let Some(Order::Submit { job, at, .. }) = stage.inbox.pop() {
            stage.reporter.publish(Report::Queued(job.id, at));
            break job.id;
        }
    };
    let (mut bytes, mut buffer) = (Vec::new(), [0; 65536]);
    let mut read = |bytes: &mut Vec<u8>| {
        while let Ok(got) = client.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..got]);
        }
    };
    let rendered = |stage: &Stage| stage.io.generations.borrow().rendered();
    let before = rendered(stage);
    for index in (at_once..=tokens).step_by(at_once as usize) {
        let at = stage.io.clock.now();
        let finish = (index == tokens).then_some(Finish::Length);
        let what = What::Token { index: Tokens::new(index), finish };
        stage.reporter.publish(Report::Event(Event { at, job, what }, at));
        stage.dispatch().await;
        stage.io.give_way().await;
        if reads == Reads::AtOnce {
            read(&mut bytes);
        }
    }
    while !bytes.ends_with(b"\r\n0\r\n\r\n") {
        stage.dispatch().await;
        stage.io.give_way().await;
        read(&mut bytes);
    }
    let text = String::from_utf8(bytes).unwrap();
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    // A second may pass between two runs.
    let second = |part: &str| part.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
    let mut parts = body.split("\"created\":");
    let first = parts.next().unwrap().to_owned();
    (first + &parts.map(second).collect::<String>(), rendered(stage) - before)
}

#[test]
fn a_token_that_comes_alone_has_been_rendered_before_and_reads_as_it_would_have() {
    play(|| async {
        let mut stage = Stage::new().await;
        let chat = r#""model":"gpu","stream":true,"ignore_eos":true,"max_tokens":60,"messages":[{"role":"user","content":"Hello"}]"#;
        let scored = format!(r#"{{{chat},"logprobs":true,"top_logprobs":20}}"#);
        let counted = format!(
            r#"{{{chat},"stream_options":{{"include_usage":true,"continuous_usage_stats":true}}}}"#
        );
        let text =
            r#"{"model":"gpu","stream":true,"ignore_eos":true,"max_tokens":60,"prompt":"Hello"}"#;
        for (path, body, is_short) in [
            ("/v1/chat/completions", &*format!("{{{chat}}}"), true),
            ("/v1/chat/completions", &counted, true),
            ("/v1/chat/completions", &scored, false),
            ("/v1/completions", text, true),
            ("/v1/messages", &format!("{{{chat}}}"), true),
        ] {
            // The client's own id, so that both answers have the same.
            let request = post(path, "x-request-id: same\r\n", body);
            let (one_by_one, rendered) = told(&mut stage, &request, (60, 1), Reads::AtOnce).await;
            let (in_pairs, all) = told(&mut stage, &request, (60, 2), Reads::AtOnce).await;
            assert_eq!(one_by_one, in_pairs, "{path} {body}");
            // The head, the first token and the last, of sixty; what is too long is not kept.
            assert_eq!(rendered < all / 5, is_short, "{path} {body}: {rendered} of {all}");
        }
    });
}

#[test]
fn a_socket_that_takes_a_part_of_what_was_rendered_before_loses_nothing() {
    play(|| async {
        let mut stage = Stage::new().await;
        let body = r#"{"model":"gpu","stream":true,"ignore_eos":true,"max_tokens":40000,"messages":[{"role":"user","content":"Hello"}]}"#;
        let request = post("/v1/chat/completions", "x-request-id: same\r\n", body);
        std::thread::spawn({
            let helpers = stage.helpers.clone();
            move || helpers.run()
        });
        let (late, _) = told(&mut stage, &request, (40_000, 1), Reads::AtTheEnd).await;
        let (in_pairs, _) = told(&mut stage, &request, (40_000, 2), Reads::AtOnce).await;
        assert!(late == in_pairs, "{} and {} bytes", late.len(), in_pairs.len());
    });
}

/// What the clients of ten streams read, of which the third breaks off after the tenth token and the
/// sixth reads nothing before the last; and how many sends a ring made.
async fn read_by_ten(batch: SendBatch) -> (Vec<String>, usize) {
    const TOKENS: u32 = 2000;
    const VANISHES: usize = 2;
    const SLEEPS: usize = 5;
    let mut stage = Stage::with(batch).await;
    // So that who reads nothing is soon sent nothing.
    SockRef::from(&stage.listener).set_send_buffer_size(8192).unwrap();
    let (clients, jobs) = stage.streams(10).await;
    let mut clients: Vec<_> = clients.into_iter().map(Some).collect();
    let mut texts = vec![Vec::new(); clients.len()];
    let read = |text: &mut Vec<u8>, client: &mut Option<StdStream>| {
        let mut buffer = [0; 65536];
        while let Some(client) = client
            && let Ok(got @ 1..) = client.read(&mut buffer)
        {
            text.extend_from_slice(&buffer[..got]);
        }
    };
    for token in 1..=TOKENS {
        stage.publish(&jobs);
        stage.dispatch().await;
        stage.io.give_way().await;
        if token == 10 {
            clients[VANISHES] = None;
        }
        for (at, client) in clients.iter_mut().enumerate().filter(|(at, _)| *at != SLEEPS) {
            read(&mut texts[at], client);
        }
    }
    let behind = stage.sent();
    assert!(behind < u64::from(TOKENS) * 9, "{behind} tokens sent, somebody slept");
    let count = |text: &[u8]| memchr::memmem::find_iter(text, "\ndata: ").count();
    while count(&texts[SLEEPS]) < count(&texts[0]) {
        read(&mut texts[SLEEPS], &mut clients[SLEEPS]);
        stage.dispatch().await;
        stage.io.give_way().await;
    }
    let by_ring = stage.io.batch.borrow().by_ring;
    // Each stream has an id of its own, and a second may have passed.
    let words = |text: &Vec<u8>| {
        let text = String::from_utf8_lossy(text).into_owned();
        let contents = text.split("\"content\":\"").skip(1);
        contents.map(|rest| rest.split('"').next().unwrap()).collect::<String>()
    };
    (texts.iter().map(words).collect(), by_ring)
}

#[test]
fn a_step_leaves_in_batches_and_nobody_suffers_from_who_reads_nothing_or_is_gone() {
    play(|| async {
        let Ok(ring) = SendBatch::with_ring() else { return };
        let (together, by_ring) = read_by_ten(ring).await;
        let (one_by_one, none) = read_by_ten(SendBatch::one_by_one()).await;
        // Of the eight that read, all tokens but the first, and of the two others some.
        assert!((8 * 1999..10 * 1999).contains(&by_ring), "{by_ring}");
        assert_eq!(none, 0);
        for (at, (this, that)) in together.iter().zip(&one_by_one).enumerate() {
            assert!(this == that, "stream {at}: {} and {} bytes", this.len(), that.len());
            assert!(this.starts_with("One two three four."), "{this}");
        }
        assert!(together[2].len() < 100, "{}", together[2]);
        assert!((0..10).filter(|&at| at != 2).all(|at| together[at] == together[0]));
    });
}

#[test]
fn tokens_of_a_batch_are_as_late_as_the_last_of_them() {
    play(|| async {
        let Ok(ring) = SendBatch::with_ring() else { return };
        let mut stage = Stage::with(ring).await;
        let (_clients, jobs) = stage.streams(8).await;
        let mut lags = Vec::new();
        // The first leaves with the head of the answer; what it takes does not tell how long the next is.
        for _ in 0..3 {
            stage.publish(&jobs);
            stage.dispatch().await;
            lags.clear();
            stage.io.shard.replicas[1].window().since(0, usize::MAX, &mut lags);
        }
        assert_eq!(lags.len(), 24);
        let third = &lags[16..];
        assert!(third.iter().all(|&lag| lag == third[0] && lag > 0), "{lags:?}");
    });
}
