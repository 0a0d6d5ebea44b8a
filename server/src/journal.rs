//! `--journal`: what each simulated GPU was told, and what came of it, in files.
//!
//! The lines are the engine's own format; this module only carries them from the GPU thread to a
//! thread that may wait for a disk. The invariant: a journal is complete or absent. If the disk is
//! slower than the GPUs, the GPU thread waits, and the wait shows as lag.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crossbeam::channel::{self, Receiver, Sender};
use llmsim_engine::sim::journal::{Journal, write_event, write_refusal};
use llmsim_engine::sim::{Event, Refusal};
use llmsim_engine::units::{JobId, SimTime};

/// Texts that may wait for the disk, over all GPUs.
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
}

/// Writes all journals of a server.
#[derive(Debug)]
pub(crate) struct JournalThread {
    files: Vec<(File, File)>,
    texts: Receiver<Text>,
}

#[derive(Debug)]
struct Text {
    file: usize,
    inputs: String,
    events: String,
}

/// The files of the journals of `gpus`: `PATH` for a single one, else `PATH.MODEL.REPLICA`; the
/// event log has `.events` behind that.
pub(crate) fn paths(path: &Path, gpus: &[(String, usize)]) -> Vec<PathBuf> {
    let with = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    match gpus {
        [_] => vec![path.to_owned()],
        _ => gpus
            .iter()
            .map(|(model, replica)| with(&format!(".{}.{replica}", model.replace('/', "_"))))
            .collect(),
    }
}

/// Creates the files; gives one journal per path, and the thread that writes them.
///
/// # Errors
/// The first file that cannot be created, with its path.
pub(crate) fn open(paths: &[PathBuf]) -> Result<(Vec<SeatJournal>, JournalThread), String> {
    let create = |path: &Path| {
        File::create(path).map_err(|why| format!("cannot write {}: {why}", path.display()))
    };
    let mut files = Vec::new();
    for path in paths {
        let mut events = path.as_os_str().to_owned();
        events.push(".events");
        files.push((create(path)?, create(Path::new(&events))?));
    }
    let (queue, texts) = channel::bounded(QUEUE);
    let journals = (0..files.len()).map(|file| SeatJournal {
        inputs: Journal::new(),
        events: String::new(),
        file,
        queue: queue.clone(),
    });
    Ok((journals.collect(), JournalThread { files, texts }))
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

    fn flush(&mut self) {
        let text = Text {
            file: self.file,
            inputs: self.inputs.text().to_owned(),
            events: std::mem::take(&mut self.events),
        };
        self.inputs.clear();
        // The other end is gone only if its disk failed, which it has reported.
        let _ = self.queue.send(text);
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
        while let Ok(text) = self.texts.recv() {
            if let Err(why) = self.write(&text) {
                eprintln!("llmsimulator: the journal ends here: {why}");
                return;
            }
        }
    }

    fn write(&mut self, text: &Text) -> io::Result<()> {
        let (inputs, events) = &mut self.files[text.file];
        inputs.write_all(text.inputs.as_bytes())?;
        events.write_all(text.events.as_bytes())
    }
}
