//! `--journal`: what each simulated GPU was told, and what came of it, in files.
//!
//! The lines are the engine's own format; this module only carries them from the GPU thread to a
//! thread that may wait for a disk. The invariant: nothing here makes a GPU thread wait. If the disk
//! is slower than the GPUs, whole texts are dropped, and a line in the file says where and how much
//! is missing: a journal is complete, or says that it is not and cannot be replayed.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::channel::{self, Receiver, Sender};
use llmsim_engine::sim::journal::{Journal, write_event, write_gap, write_refusal};
use llmsim_engine::sim::{Event, Refusal};
use llmsim_engine::units::{JobId, SimTime};

/// Texts that may wait for the disk, over all GPUs: 16 MiB. Beyond that they are dropped and counted.
const QUEUE: usize = 1024;

/// A text is passed on when it is that long, or when its GPU thread has nothing else to do.
const PASS_ON_BYTES: usize = 16 * 1024;

/// The journal of one simulated GPU.
#[derive(Debug)]
pub(crate) struct SeatJournal {
    pub(crate) inputs: Journal,
    events: String,
    file: usize,
    queue: Sender<Text>,
    lost: Arc<Lost>,
}

/// Writes all journals of a server.
pub(crate) struct JournalThread {
    files: Vec<Files>,
    texts: Receiver<Text>,
    has_told_loss: bool,
}

type Sink = Box<dyn Write + Send>;

struct Files {
    inputs: Sink,
    events: Sink,
    lost: Arc<Lost>,
}

/// Lines that were dropped and that no line in the files speaks of yet.
#[derive(Debug, Default)]
struct Lost {
    inputs: AtomicU64,
    events: AtomicU64,
}

#[derive(Debug)]
struct Text {
    file: usize,
    inputs: String,
    events: String,
    /// Lines that were dropped before this text.
    missing_inputs: u64,
    missing_events: u64,
}

/// The files of the journals of `gpus`: `PATH` for a single one, else `PATH.MODEL.REPLICA`, the
/// model's name percent-encoded; the event log has `.events` behind that.
pub(crate) fn paths(path: &Path, gpus: &[(String, u16)]) -> Vec<PathBuf> {
    let with = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    match gpus {
        [_] => vec![path.to_owned()],
        _ => gpus
            .iter()
            .map(|(model, replica)| with(&format!(".{}.{replica}", percent_encoded(model))))
            .collect(),
    }
}

/// No two names become the same one, and none has a slash: RFC 3986's unreserved characters stay.
pub(crate) fn percent_encoded(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Creates the files; gives one journal per path, and the thread that writes them.
///
/// # Errors
/// The first file that cannot be created, with its path.
pub(crate) fn open(paths: &[PathBuf]) -> Result<(Vec<SeatJournal>, JournalThread), String> {
    let create = |path: &Path| match File::create(path) {
        Ok(file) => Ok(Box::new(file) as Sink),
        Err(why) => Err(format!(
            "--journal {}: cannot be written: {why}; name a file in a directory that exists",
            path.display()
        )),
    };
    let mut files = Vec::new();
    for path in paths {
        let mut events = path.as_os_str().to_owned();
        events.push(".events");
        files.push((create(path)?, create(Path::new(&events))?));
    }
    Ok(with_room_for(QUEUE, files))
}

fn with_room_for(texts: usize, files: Vec<(Sink, Sink)>) -> (Vec<SeatJournal>, JournalThread) {
    let (queue, texts) = channel::bounded(texts);
    let files: Vec<Files> = files
        .into_iter()
        .map(|(inputs, events)| Files { inputs, events, lost: Arc::default() })
        .collect();
    let journals = files.iter().enumerate().map(|(file, files)| SeatJournal {
        inputs: Journal::new(),
        events: String::new(),
        file,
        queue: queue.clone(),
        lost: Arc::clone(&files.lost),
    });
    (journals.collect(), JournalThread { files, texts, has_told_loss: false })
}

impl SeatJournal {
    /// Notes that the engine was told the time, and what it said.
    pub(crate) fn advance(&mut self, now: SimTime, events: &[Event]) {
        self.inputs.advance(now);
        for event in events {
            write_event(&mut self.events, event);
        }
    }

    /// Notes a refusal.
    pub(crate) fn refuse(&mut self, at: SimTime, job: JobId, why: Refusal) {
        write_refusal(&mut self.events, at, job, why);
    }

    /// Passes on what has gathered, if it is much.
    pub(crate) fn pass_on(&mut self) {
        if self.inputs.text().len() + self.events.len() >= PASS_ON_BYTES {
            self.flush();
        }
    }

    /// Passes on what has gathered.
    pub(crate) fn flush(&mut self) {
        if self.inputs.text().is_empty() && self.events.is_empty() {
            return;
        }
        let text = Text {
            file: self.file,
            inputs: self.inputs.text().to_owned(),
            events: std::mem::take(&mut self.events),
            missing_inputs: self.lost.inputs.swap(0, Ordering::Relaxed),
            missing_events: self.lost.events.swap(0, Ordering::Relaxed),
        };
        self.inputs.clear();
        // The other end is gone only if its disk failed, which it has reported.
        if let Err(refused) = self.queue.try_send(text) {
            let text = refused.into_inner();
            let lines = |text: &str| text.lines().count() as u64;
            let inputs = text.missing_inputs + lines(&text.inputs);
            let events = text.missing_events + lines(&text.events);
            self.lost.inputs.store(inputs, Ordering::Relaxed);
            self.lost.events.store(events, Ordering::Relaxed);
        }
    }
}

impl Drop for SeatJournal {
    fn drop(&mut self) {
        self.flush();
    }
}

impl JournalThread {
    /// Writes until the last journal is closed.
    pub(crate) fn run(mut self) {
        if let Err(why) = self.write_all() {
            eprintln!("llmsimulator: the journal ends here: {why}");
        }
    }

    fn write_all(&mut self) -> io::Result<()> {
        while let Ok(text) = self.texts.recv() {
            self.write(&text)?;
        }
        // The queue has come to its end after all that the GPU threads did.
        for file in 0..self.files.len() {
            let lost = &self.files[file].lost;
            let missing_inputs = lost.inputs.swap(0, Ordering::Relaxed);
            let missing_events = lost.events.swap(0, Ordering::Relaxed);
            let (inputs, events) = (String::new(), String::new());
            self.write(&Text { file, inputs, events, missing_inputs, missing_events })?;
        }
        Ok(())
    }

    fn write(&mut self, text: &Text) -> io::Result<()> {
        let Files { inputs, events, .. } = &mut self.files[text.file];
        write_after_gap(inputs, text.missing_inputs, &text.inputs)?;
        write_after_gap(events, text.missing_events, &text.events)?;
        if text.missing_inputs + text.missing_events > 0 && !self.has_told_loss {
            self.has_told_loss = true;
            eprintln!(
                "llmsimulator: --journal: the disk does not keep up; lines are missing where the \
                 files say `gap`, and what has a gap cannot be replayed"
            );
        }
        Ok(())
    }
}

fn write_after_gap(file: &mut impl Write, missing: u64, text: &str) -> io::Result<()> {
    if missing > 0 {
        let mut gap = String::new();
        write_gap(&mut gap, missing);
        file.write_all(gap.as_bytes())?;
    }
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use llmsim_engine::sim::journal::{parse_events, parse_inputs};

    use super::*;

    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<Vec<u8>>>);

    impl Disk {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn cancel(journal: &mut SeatJournal, ns: u64) {
        let (at, job) = (SimTime::from_ns(ns), JobId(ns));
        journal.inputs.cancel(at, job);
        journal.refuse(at, job, Refusal::QueueFull);
        journal.flush();
    }

    #[test]
    fn a_gpu_never_waits_for_the_disk_and_the_journal_says_what_is_missing() {
        let (inputs, events) = (Disk::default(), Disk::default());
        let files: Vec<(Sink, Sink)> = vec![(Box::new(inputs.clone()), Box::new(events.clone()))];
        // Nobody writes yet: a flush that waited would never end.
        let (mut journals, mut thread) = with_room_for(1, files);
        let mut journal = journals.pop().unwrap();
        (1..=3).for_each(|ns| cancel(&mut journal, ns));
        let first = thread.texts.try_recv().unwrap();
        thread.write(&first).unwrap();
        (4..=6).for_each(|ns| cancel(&mut journal, ns));
        drop(journal);
        thread.run();

        assert_eq!(inputs.text(), "cancel 1 1\ngap 2\ncancel 4 4\ngap 2\n");
        assert_eq!(events.text(), "1 1 refused queue_full\ngap 2\n4 4 refused queue_full\ngap 2\n");
        let why =
            "2 lines are missing here: the disk was slower than the run, which cannot be replayed";
        for bad in
            [parse_inputs(&inputs.text()).unwrap_err(), parse_events(&events.text()).unwrap_err()]
        {
            assert_eq!((bad.line, &*bad.problem), (2, why));
        }
    }

    #[test]
    fn models_whose_names_differ_only_in_a_slash_have_files_of_their_own() {
        let gpus = ["a/b", "a_b", "a%2Fb", "ä b"].map(|name| (name.to_owned(), 0));
        let paths = paths(Path::new("run"), &gpus);
        let expected = ["run.a%2Fb.0", "run.a_b.0", "run.a%252Fb.0", "run.%C3%A4%20b.0"];
        assert_eq!(paths, expected.map(PathBuf::from));
    }
}
