//! `--step-log` and `--trace`: from GPU threads to files, without a GPU thread ever waiting.
//!
//! A GPU thread fills a [`Batch`] through its [`Tap`] and offers it to a bounded channel; a writer
//! thread renders and writes. The invariant: nothing here makes a GPU thread wait. When the channel
//! is full the batch is dropped, and the files say so: a line with the number of missing steps, and
//! request tracks that end where their notes are missing.
//!
//! Offline there is nobody to wait for, so `simulate` hands its batches to [`StepFiles`] directly.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;

use llmsim_engine::record::trace::{Gpu, Trace};
use llmsim_engine::record::{GpuName, Note, step_log};
use llmsim_engine::sim::scheduler::StepLog;
use llmsim_engine::sim::{Engine, EngineSpec};
use llmsim_engine::units::{Blocks, SimTime};

/// What one simulated GPU did since its last batch.
#[derive(Debug, Default)]
pub struct Batch {
    /// Which GPU, by its place in the list that the files were opened with.
    pub gpu: usize,
    /// The steps that ended.
    pub steps: StepLog,
    /// What happened to requests; only for a trace.
    pub notes: Vec<Note>,
    /// When the batch was closed.
    pub at: SimTime,
    /// Steps that were dropped before this batch.
    missing_steps: u64,
    /// Notes were dropped before this batch.
    missing_notes: bool,
}

impl Batch {
    fn clear(&mut self) {
        self.steps.clear();
        self.notes.clear();
        self.missing_steps = 0;
        self.missing_notes = false;
    }
}

/// The blocks that a GPU with this engine can hand out: block 0 is a placeholder.
pub fn usable_blocks(engine: &EngineSpec) -> Blocks {
    match engine {
        EngineSpec::Scheduler(spec) => Blocks::new(spec.num_blocks.get().saturating_sub(1)),
        EngineSpec::Instant | EngineSpec::FixedRate(_) => Blocks::ZERO,
    }
}

/// The open files, and what is needed to go on writing them.
pub struct StepFiles {
    gpus: Vec<(String, Blocks)>,
    step_log: Option<Box<dyn Write + Send>>,
    trace: Option<TraceFile>,
    rendered: Vec<u8>,
}

struct TraceFile {
    file: Box<dyn Write + Send>,
    trace: Trace,
    gpus: Vec<Gpu>,
}

impl StepFiles {
    /// Creates the files and begins the trace; `None` if neither is wanted. `gpus` are the
    /// simulated GPUs' names and usable blocks.
    ///
    /// # Errors
    /// The message for the user, if a file cannot be created or written.
    pub fn create(
        step_log: Option<&Path>,
        trace: Option<&Path>,
        gpus: Vec<(String, Blocks)>,
    ) -> Result<Option<Self>, String> {
        if step_log.is_none() && trace.is_none() {
            return Ok(None);
        }
        let create = |flag: &str, path: Option<&Path>| {
            path.map(|path| match File::create(path) {
                Ok(file) => Ok(Box::new(BufWriter::with_capacity(1 << 16, file)) as _),
                Err(error) => Err(format!(
                    "{flag} {}: cannot be written: {error}; name a file in a directory that exists",
                    path.display()
                )),
            })
            .transpose()
        };
        let step_log = create("--step-log", step_log)?;
        let trace = create("--trace", trace)?;
        Self::new(step_log, trace, gpus).map(Some).map_err(|error| format!("--trace: {error}"))
    }

    pub(crate) fn new(
        step_log: Option<Box<dyn Write + Send>>,
        trace: Option<Box<dyn Write + Send>>,
        gpus: Vec<(String, Blocks)>,
    ) -> io::Result<Self> {
        let mut rendered = Vec::new();
        let trace = match trace {
            None => None,
            Some(mut file) => {
                let mut trace = Trace::begin(&mut rendered);
                let gpus = gpus.iter().map(|gpu| trace.gpu(name(gpu), &mut rendered)).collect();
                file.write_all(&rendered)?;
                Some(TraceFile { file, trace, gpus })
            }
        };
        Ok(Self { gpus, step_log, trace, rendered })
    }

    /// Whether [`Batch::notes`] are of any use.
    pub fn want_notes(&self) -> bool {
        self.trace.is_some()
    }

    /// Renders and writes a batch.
    ///
    /// # Errors
    /// As the file system has them.
    pub fn write(&mut self, batch: &Batch) -> io::Result<()> {
        let gpu = name(&self.gpus[batch.gpu]);
        if let Some(file) = &mut self.step_log {
            self.rendered.clear();
            let missing = batch.missing_steps + batch.steps.dropped();
            if missing > 0 {
                step_log::missing(gpu, missing, &mut self.rendered);
            }
            for step in batch.steps.steps() {
                step_log::line(gpu, &batch.steps, step, &mut self.rendered);
            }
            file.write_all(&self.rendered)?;
        }
        if let Some(TraceFile { file, trace, gpus }) = &mut self.trace {
            self.rendered.clear();
            let gpu = gpus[batch.gpu];
            if batch.missing_notes {
                let first = batch.steps.steps().first().map(|step| step.started);
                trace.gap(gpu, first.unwrap_or(batch.at), &mut self.rendered);
            }
            for step in batch.steps.steps() {
                trace.step(gpu, &batch.steps, step, &mut self.rendered);
            }
            for note in &batch.notes {
                trace.note(gpu, note, &mut self.rendered);
            }
            file.write_all(&self.rendered)?;
        }
        Ok(())
    }

    /// Makes all that was written visible to readers of the files.
    ///
    /// # Errors
    /// As the file system has them.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.step_log {
            file.flush()?;
        }
        if let Some(trace) = &mut self.trace {
            trace.file.flush()?;
        }
        Ok(())
    }

    /// Ends the trace and writes all out.
    ///
    /// # Errors
    /// As the file system has them.
    pub fn finish(mut self) -> io::Result<()> {
        if let Some(TraceFile { mut file, trace, .. }) = self.trace.take() {
            self.rendered.clear();
            trace.end(&mut self.rendered);
            file.write_all(&self.rendered)?;
            file.flush()?;
        }
        self.flush()
    }
}

fn name((name, usable_blocks): &(String, Blocks)) -> GpuName<'_> {
    GpuName { name, usable_blocks: *usable_blocks }
}

/// Records one simulated GPU straight into the files, for a run in virtual time.
pub struct Recorder<'a> {
    files: &'a mut StepFiles,
    batch: Batch,
}

impl<'a> Recorder<'a> {
    /// For the GPU in that place of the list that the files were created with.
    pub fn new(files: &'a mut StepFiles, gpu: usize) -> Self {
        Self { files, batch: Batch { gpu, ..Batch::default() } }
    }

    /// Adds a note, if anybody wants it.
    pub fn note(&mut self, note: Note) {
        if self.files.want_notes() {
            self.batch.notes.push(note);
        }
    }

    /// Writes what was noted, and the steps that ended.
    ///
    /// # Errors
    /// As the file system has them.
    pub fn write(&mut self, engine: &mut Engine, now: SimTime) -> io::Result<()> {
        engine.swap_steps(&mut self.batch.steps);
        self.batch.at = now;
        let written = self.files.write(&self.batch);
        self.batch.clear();
        written
    }
}

/// Batches on their way to the writer, of all GPUs together. At 20 ms a step and a batch per step
/// this lets the disk stall for 20 s with one GPU; beyond that batches are dropped and counted.
const BATCHES_UNDER_WAY: usize = 1024;

/// The writer thread.
#[derive(Debug)]
pub struct StepWriter {
    thread: JoinHandle<()>,
}

impl StepWriter {
    /// Starts the thread, and gives a tap for each of the `gpus` that the files were opened with.
    /// It ends when all taps are gone.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn spawn(files: StepFiles) -> io::Result<(Self, Vec<Tap>)> {
        Self::with_room_for(BATCHES_UNDER_WAY, files)
    }

    fn with_room_for(batches: usize, files: StepFiles) -> io::Result<(Self, Vec<Tap>)> {
        let (full_in, full_out) = sync_channel(batches);
        let mut taps = Vec::new();
        let mut returns = Vec::new();
        for gpu in 0..files.gpus.len() {
            let (empty_in, empty_out) = sync_channel(batches);
            returns.push(empty_in);
            taps.push(Tap {
                writer: full_in.clone(),
                empty: empty_out,
                batch: Batch { gpu, ..Batch::default() },
                want_notes: files.want_notes(),
            });
        }
        drop(full_in);
        let thread = std::thread::Builder::new()
            .name("step-writer".to_owned())
            .spawn(move || write_until_all_taps_are_gone(files, &full_out, &returns))?;
        Ok((Self { thread }, taps))
    }

    /// Waits until all is written, but not longer than this. Whether it is.
    pub(crate) fn join_within(self, patience: std::time::Duration) -> bool {
        crate::drain::join_within(self.thread, patience)
    }

    /// Waits until all is written; the taps must be gone, or this never ends.
    pub fn join(self) {
        if self.thread.join().is_err() {
            eprintln!("llmsimulator: the step writer failed; its files are incomplete");
        }
    }
}

fn write_until_all_taps_are_gone(
    files: StepFiles,
    full: &Receiver<Batch>,
    returns: &[SyncSender<Batch>],
) {
    // After an error (a full disk) batches are still taken, so that nothing piles up.
    let mut files = Some(files);
    let report = |result: io::Result<()>, files: &mut Option<StepFiles>| {
        if let Err(error) = result {
            eprintln!("llmsimulator: the step log or trace ends here: {error}");
            *files = None;
        }
    };
    loop {
        let batch = match full.try_recv() {
            Ok(batch) => Ok(batch),
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                let flushed = files.as_mut().map_or(Ok(()), StepFiles::flush);
                report(flushed, &mut files);
                full.recv()
            }
        };
        let Ok(mut batch) = batch else { break };
        let written = files.as_mut().map_or(Ok(()), |files| files.write(&batch));
        report(written, &mut files);
        batch.clear();
        // If the tap is gone or has enough, its storage is simply freed.
        let _ = returns[batch.gpu].try_send(batch);
    }
    if let Some(files) = files.take() {
        let finished = files.finish();
        report(finished, &mut None);
    }
}

/// Notes without a step go out when there are so many of them.
const WORTH_A_BATCH: usize = 256;

/// The end of the channel that belongs to one simulated GPU's thread.
#[derive(Debug)]
pub struct Tap {
    writer: SyncSender<Batch>,
    empty: Receiver<Batch>,
    batch: Batch,
    want_notes: bool,
}

impl Tap {
    /// Adds a note, if anybody wants it.
    pub fn note(&mut self, note: Note) {
        if self.want_notes {
            self.batch.notes.push(note);
        }
    }

    /// Hands over what happened up to `now`, if it is worth a batch; called after the events are on
    /// their way to clients.
    pub fn flush(&mut self, now: SimTime, engine: &mut Engine) {
        engine.swap_steps(&mut self.batch.steps);
        self.close(now);
    }

    /// The same with steps that somebody else has taken from the engine; they are gone afterwards.
    pub fn flush_steps(&mut self, now: SimTime, steps: &mut StepLog) {
        std::mem::swap(&mut self.batch.steps, steps);
        steps.clear();
        self.close(now);
    }

    fn close(&mut self, now: SimTime) {
        self.batch.at = now;
        if !self.batch.steps.steps().is_empty() || self.batch.notes.len() >= WORTH_A_BATCH {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        let gpu = self.batch.gpu;
        let empty = self.empty.try_recv().unwrap_or_default();
        let full = std::mem::replace(&mut self.batch, Batch { gpu, ..empty });
        if let Err(TrySendError::Full(lost) | TrySendError::Disconnected(lost)) =
            self.writer.try_send(full)
        {
            // Keeps its storage, forgets its contents, remembers how much.
            let missing =
                lost.missing_steps + lost.steps.steps().len() as u64 + lost.steps.dropped();
            self.batch = lost;
            self.batch.clear();
            self.batch.missing_steps = missing;
            self.batch.missing_notes = self.want_notes;
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if !self.batch.notes.is_empty() {
            self.hand_over();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Condvar, Mutex};

    use super::*;
    use llmsim_engine::sim::Job;
    use llmsim_engine::sim::scheduler::cost::StepCost;
    use llmsim_engine::sim::scheduler::{Recording, SchedulerSpec, Scheduling};
    use llmsim_engine::units::{JobId, SimSpan, Tokens};

    /// A disk in memory, whose owner decides when it takes anything.
    #[derive(Clone, Default)]
    struct Disk(Arc<(Mutex<Contents>, Condvar)>);

    #[derive(Default)]
    struct Contents {
        bytes: Vec<u8>,
        stalled: bool,
        full: bool,
        waiting: bool,
    }

    impl Disk {
        fn change(&self, change: impl FnOnce(&mut Contents)) {
            change(&mut self.0.0.lock().unwrap());
            self.0.1.notify_all();
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.0.lock().unwrap().bytes.clone()).unwrap()
        }

        fn wait_until(&self, reached: impl Fn(&Contents) -> bool) {
            let contents = self.0.0.lock().unwrap();
            drop(self.0.1.wait_while(contents, |contents| !reached(contents)).unwrap());
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut contents = self.0.0.lock().unwrap();
            contents.waiting = true;
            self.0.1.notify_all();
            let mut contents = self.0.1.wait_while(contents, |contents| contents.stalled).unwrap();
            contents.waiting = false;
            if contents.full {
                return Err(io::Error::new(io::ErrorKind::StorageFull, "the disk is full"));
            }
            contents.bytes.extend_from_slice(bytes);
            self.0.1.notify_all();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A GPU with steps of 10 ms.
    fn engine() -> Engine {
        let spec = SchedulerSpec {
            max_num_batched_tokens: Tokens::new(64),
            max_num_seqs: 4,
            prefix_caching: false,
            scheduling: Scheduling::Synchronous,
            ..SchedulerSpec::vllm(
                Tokens::new(64),
                Blocks::new(17),
                StepCost::Fixed(SimSpan::from_ms(10)),
            )
        };
        let mut engine = EngineSpec::Scheduler(Box::new(spec)).build();
        engine.record_steps(Recording::On);
        engine
    }

    fn job(output: u32) -> Job {
        Job {
            id: JobId(1),
            prompt: Tokens::new(8),
            max_tokens: Tokens::new(output),
            stop_after: None,
            priority: 0,
            chain: None,
        }
    }

    fn files(step_log: &Disk, trace: Option<&Disk>) -> StepFiles {
        let trace = trace.map(|disk| Box::new(disk.clone()) as Box<dyn Write + Send>);
        let gpus = vec![("m/0".to_owned(), Blocks::new(16))];
        StepFiles::new(Some(Box::new(step_log.clone())), trace, gpus).unwrap()
    }

    /// Runs a job of so many tokens, a step and a batch each.
    fn run(tap: &mut Tap, engine: &mut Engine, from: SimTime, output: u32) -> SimTime {
        let job = job(output);
        tap.note(Note::Arrived { at: from, job: job.id, prompt: job.prompt });
        engine.submit(from, job);
        let mut events = Vec::new();
        let mut now = from;
        while let Some(due) = engine.deadline() {
            now = due;
            engine.advance(now, &mut events);
            for event in events.drain(..) {
                tap.note(Note::Happened(event));
            }
            tap.flush(now, engine);
        }
        now
    }

    fn steps_of(text: &str) -> Vec<&str> {
        text.lines()
            .map(|line| {
                let start = line.find("\"step\":").or(line.find("\"missing_steps\":")).unwrap();
                line[start..].split([',', '}']).next().unwrap()
            })
            .collect()
    }

    #[test]
    fn what_a_gpu_did_is_in_the_files() {
        let (log, trace) = (Disk::default(), Disk::default());
        let (writer, mut taps) = StepWriter::spawn(files(&log, Some(&trace))).unwrap();
        run(&mut taps[0], &mut engine(), SimTime::ZERO, 3);
        drop(taps);
        writer.join();
        assert_eq!(steps_of(&log.text()), ["\"step\":1", "\"step\":2", "\"step\":3"]);
        let events: Vec<sonic_rs::Value> = sonic_rs::from_str(&trace.text()).unwrap();
        // Begin, process and thread; 3 steps of a slice and 3 counters; the request and its 3
        // phases, each begun and ended; 3 counters at the end.
        assert_eq!(events.len(), 3 + 12 + 8 + 3);
    }

    #[test]
    fn a_stalled_disk_makes_nobody_wait_and_the_log_says_what_is_missing() {
        let log = Disk::default();
        let (writer, mut taps) = StepWriter::with_room_for(2, files(&log, None)).unwrap();
        let mut engine = engine();
        log.change(|disk| disk.stalled = true);
        // The first batch stalls in the writer's hands; of the next ten two have room.
        let now = run(&mut taps[0], &mut engine, SimTime::ZERO, 1);
        log.wait_until(|disk| disk.waiting);
        let now = run(&mut taps[0], &mut engine, now, 10);
        log.change(|disk| disk.stalled = false);
        log.wait_until(|disk| disk.bytes.iter().filter(|byte| **byte == b'\n').count() == 3);
        // The disk is well again.
        run(&mut taps[0], &mut engine, now, 1);
        drop(taps);
        writer.join();
        let expected =
            ["\"step\":1", "\"step\":2", "\"step\":3", "\"missing_steps\":8", "\"step\":12"];
        assert_eq!(steps_of(&log.text()), expected);
    }

    #[test]
    fn a_full_disk_ends_the_log_and_nothing_else() {
        let log = Disk::default();
        let (writer, mut taps) = StepWriter::with_room_for(2, files(&log, None)).unwrap();
        log.change(|disk| disk.full = true);
        run(&mut taps[0], &mut engine(), SimTime::ZERO, 20);
        drop(taps);
        writer.join();
        assert_eq!(log.text(), "");
    }

    #[test]
    fn a_file_that_cannot_be_created_is_named_with_its_flag() {
        let path = Path::new("/nowhere/at/all/steps.jsonl");
        let error = StepFiles::create(Some(path), None, Vec::new()).err().unwrap();
        assert!(error.starts_with("--step-log /nowhere/at/all/steps.jsonl: cannot be"), "{error}");
    }
}
