//! From settings to a running server, and back to nothing.
//!
//! The invariant: [`Server::start`] either gives back a server that answers on its address, or an
//! error and nothing half-started.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam::channel::{self, Receiver};
use llmsim_engine::config::Config;
use llmsim_engine::observe::{Figures, Recorder};
use llmsim_engine::seed::Seed;
use llmsim_engine::sim::EngineSpec;
use llmsim_engine::units::SimSpan;

use crate::args::{ApiKeys, IoDriver, Pinning, Priority, Settings};
use crate::clock::{self, Clock};
use crate::drain::{self, Control};
use crate::faults::Faults;
use crate::gate::{Gate, Unavailable};
use crate::gpu_thread::{GpuThread, Seat, Troubles};
use crate::helper;
use crate::io_thread::{Door, IoThread, build_runtime};
use crate::journal;
use crate::metrics::observatory::{Driver, Observatory, Observed, Shards};
use crate::metrics::record::{GpuGauges, GpuShard, IoShard};
use crate::metrics::{self, Totals};
use crate::ring::{Inbox, reports};
use crate::served::{Down, Home, Limits, Model, Replica, Scope, Served, Sleep, Sleepers};
use crate::step_writer::{StepFiles, StepWriter, Tap, usable_blocks};
use crate::sys;
use crate::tls::Tls;
use crate::topology::{self, Machine, Pace, Topology, Wishes};

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// The shared port, then those of single replicas in the order of the configuration.
    gates: Vec<Gate>,
    control: Arc<Control>,
    io_ended: Receiver<()>,
    io_threads: Vec<JoinHandle<()>>,
    gpu_threads: Vec<JoinHandle<()>>,
    inboxes: Vec<Arc<Inbox>>,
    boot_log: Vec<String>,
    journal: Option<JoinHandle<()>>,
    step_writer: Option<StepWriter>,
    io_shards: Vec<Arc<IoShard>>,
    figures: Vec<Arc<Figures>>,
    observer: Option<JoinHandle<()>>,
    stop_observer: Arc<AtomicBool>,
    /// In the order of the configuration.
    gpu_gauges: Vec<(String, Arc<GpuGauges>)>,
    /// Gates behind the shared one that are of single replicas.
    replica_gates: usize,
}

/// Why a server did not start.
#[derive(Debug)]
pub struct StartError {
    message: String,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StartError {}

impl From<Unavailable> for StartError {
    fn from(why: Unavailable) -> Self {
        Self { message: why.to_string() }
    }
}

/// Reports that may wait in the ring between a GPU thread and an I/O thread: four steps of a batch
/// of 1,024. What comes on top spills into a list.
const RING: usize = 4096;

impl Server {
    /// Starts serving.
    ///
    /// # Errors
    /// If the address cannot be had, or the I/O driver that was asked for.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        if let Some(cpus) = &settings.threads.cpus {
            sys::use_only(&cpus.0).map_err(|why| StartError {
                message: format!("--cpus names a processor that may not be used: {why}"),
            })?;
        }
        let machine = Machine::look();
        let open_files = sys::raise_open_files();
        let places = places(&settings.config);
        let mut gates = bind(&settings, places.len())?;

        let gpus: Vec<Gpu> = places.iter().copied().filter(|place| !place.is_here).collect();
        let is_of_fixed_rate = |gpu: &Gpu| {
            matches!(settings.config.models[gpu.model].engine, EngineSpec::FixedRate(_))
        };
        let topology = topology::plan(
            &machine,
            gpus.len(),
            if gpus.iter().any(is_of_fixed_rate) { Pace::Streams } else { Pace::Steps },
            &Wishes {
                io_threads: settings.threads.io_threads,
                no_pin: settings.threads.pinning == Pinning::Never,
                spin: settings.threads.spin,
            },
        );
        let mut boot_log = describe(&settings, &machine, &topology, open_files);

        let names: Vec<_> = gpus
            .iter()
            .map(|gpu| (settings.config.models[gpu.model].name.clone(), gpu.replica))
            .collect();
        let (mut journals, journal) = match &settings.logs.journal {
            Some(path) => {
                let (journals, thread) = journal::open(&journal::paths(path, &names))
                    .map_err(|message| StartError { message })?;
                let thread = spawn("journal".to_owned(), move || thread.run());
                (journals.into_iter().map(Some).collect(), Some(thread))
            }
            None => (names.iter().map(|_| None).collect::<Vec<_>>(), None),
        };
        let (mut taps, step_writer) = step_taps(&settings, &gpus, &names)?;
        let gpu_gauges: Vec<_> =
            names.into_iter().map(|(name, _)| (name, Arc::new(GpuGauges::default()))).collect();

        let overhead = |gpu: &Gpu| settings.config.models[gpu.model].request_overhead;
        let overheads: Vec<_> = gpus.iter().map(overhead).collect();
        let clock = Clock::start();
        let observed = observe(&settings, &places, topology.io.len());
        let io_shards: Vec<_> = topology
            .io
            .iter()
            .map(|_| Arc::new(IoShard::new(places.len(), settings.summary.token_samples)))
            .collect();
        let gpu_shards: Vec<_> =
            topology.gpu.iter().map(|_| Arc::new(GpuShard::default())).collect();
        let faults =
            Arc::new(Faults::new(settings.config.faults.clone(), settings.config.models.clone()));
        let observatory = Arc::new(Observatory::new(
            clock,
            &settings.config.models,
            observed.seats,
            Shards { io: io_shards.clone(), gpu: gpu_shards.clone() },
            settings.metrics.clone(),
            settings.summary,
            Arc::clone(&faults),
        ));
        let connections = connection_limit(settings.limits.max_connections, open_files.soft);
        let config = settings.config;
        let downs: Arc<[Arc<Down>]> = places.iter().map(|_| Arc::new(Down::default())).collect();
        let mut timelines = faults.disturbances(&faults.plan()).into_iter();
        let served = Arc::new(serve(
            config,
            &places,
            &topology,
            Limits {
                body: settings.limits.max_body_bytes,
                head: span(settings.limits.head_timeout),
                body_time: span(settings.limits.body_timeout),
                idle: span(settings.limits.idle_timeout),
                stall: span(settings.limits.write_timeout),
                connections,
            },
            settings.api_keys,
            Arc::clone(&observatory.sleepers),
            Failing {
                faults: Arc::clone(&faults),
                downs: Arc::clone(&downs),
                has_admin: settings.admin.is_on && settings.admin.address.is_none(),
            },
        ));
        let replica_gates = gates.len() - 1;
        let mut of_gates: Vec<Arc<Served>> = std::iter::once(Arc::clone(&served))
            .chain((1..gates.len()).map(|gate| Arc::new(served.only(gate - 1))))
            .collect();
        if let Some((host, port)) = settings.admin.address.as_ref().filter(|_| settings.admin.is_on)
        {
            gates.push(Gate::bind(host, *port, "--admin-address")?);
            of_gates.push(Arc::new(served.with_admin()));
        }

        let doors: Vec<Arc<Door>> = topology.io.iter().map(|_| Arc::new(Door::new())).collect();
        let control = Arc::new(Control::new(doors.clone()));
        let inboxes: Vec<Arc<Inbox>> =
            topology.gpu.iter().map(|_| Arc::new(Inbox::new())).collect();
        let is_realtime = settings.threads.priority == Priority::Realtime;

        let timed = places.iter().zip(downs.iter()).filter(|(place, _)| !place.is_here);
        let mut troubles: Vec<Option<Troubles>> = timed
            .enumerate()
            .map(|(gpu, (_, down))| {
                Some(Troubles {
                    timeline: timelines.next().unwrap_or_default().into(),
                    change: 0,
                    gpu,
                    faults: Arc::clone(&faults),
                    down: Arc::clone(down),
                })
            })
            .collect();

        // GPU threads, and the rings from them to the I/O threads.
        let mut rings: Vec<Vec<_>> = doors.iter().map(|_| Vec::new()).collect();
        let mut gpu_threads = Vec::new();
        for (number, seats) in topology.gpu.iter().enumerate() {
            let mut reporters = Vec::new();
            for (door, rings) in doors.iter().zip(&mut rings) {
                let (reporter, ring) = reports(RING, Arc::clone(&door.bell));
                reporters.push(reporter);
                rings.push(ring);
            }
            let shard = Arc::clone(&gpu_shards[number]);
            let mut seat = |&gpu: &usize| {
                Seat::new(
                    served.models[gpus[gpu].model].spec.build(),
                    overheads[gpu],
                    Arc::clone(&gpu_gauges[gpu].1),
                    Recorder::new(Arc::clone(&observed.gpus[gpu])),
                    journals[gpu].take(),
                    taps[gpu].take(),
                    troubles[gpu].take().expect("a GPU has one seat"),
                )
            };
            let gpu_thread = GpuThread {
                clock,
                seats: seats.gpus.iter().map(&mut seat).collect(),
                inbox: Arc::clone(&inboxes[number]),
                reporters,
                shard,
                spin: topology.spin,
            };
            let cpu = seats.cpu;
            gpu_threads.push(spawn(format!("gpu-{number}"), move || {
                // Above the I/O threads: it may stand on the processor of one, and its work is short.
                settle(cpu, is_realtime.then_some(2));
                gpu_thread.run();
            }));
        }

        // Helpers end when the last I/O thread drops its way to them.
        let (helper, helper_thread) = helper::queue(connections);
        let helpers = (machine.parallelism / 4).clamp(1, 4);
        let for_short = helper_thread.clone();
        drop(spawn("helper-short".to_owned(), move || for_short.run_short()));
        for number in 0..helpers {
            let helper_thread = helper_thread.clone();
            drop(spawn(format!("helper-{number}"), move || helper_thread.run()));
        }

        // Its own, so that a scrape never waits behind the parsing of long prompts.
        let (metrics_helper, helper_thread) = helper::queue(connections);
        drop(spawn("helper-metrics".to_owned(), move || helper_thread.run()));

        // And so have handshakes: a burst of them does not wait behind prompts, nor they behind it.
        let tls = settings.tls.map(|identity| {
            let (helper, helper_thread) = helper::queue(connections);
            for number in 0..helpers {
                let helper_thread = helper_thread.clone();
                drop(spawn(format!("helper-tls-{number}"), move || helper_thread.run()));
            }
            Tls { identity, helper }
        });
        let scheme = if tls.is_some() { "https" } else { "http" };

        let (ended, io_ended) = channel::bounded(topology.io.len());
        let (driver_built, drivers) = channel::bounded(topology.io.len());
        let mut io_threads = Vec::new();
        for (number, rings) in rings.into_iter().enumerate() {
            let shard = Arc::clone(&io_shards[number]);
            let io_thread = IoThread {
                number: u8::try_from(number).expect("the topology keeps to a few I/O threads"),
                clock,
                gates: of_gates.clone(),
                door: Arc::clone(&doors[number]),
                rings,
                inboxes: inboxes.clone(),
                helper: helper.clone(),
                metrics_helper: metrics_helper.clone(),
                tls: tls.clone(),
                control: Arc::clone(&control),
                shard,
                here: observed.here[number]
                    .iter()
                    .map(|(model, figures)| {
                        (served.models[*model].spec.build(), Arc::clone(figures))
                    })
                    .collect(),
                observatory: Arc::clone(&observatory),
                entropy: entropy(number),
            };
            let (cpu, driver) = (topology.io[number], settings.threads.io_driver);
            let (ended, driver_built) = (ended.clone(), driver_built.clone());
            io_threads.push(spawn(format!("io-{number}"), move || {
                settle(cpu, is_realtime.then_some(1));
                match build_runtime(driver) {
                    Ok((mut runtime, batch, why)) => {
                        let _ = driver_built.send(Ok(why));
                        io_thread.run(&mut runtime, batch);
                    }
                    Err(why) => {
                        let _ = driver_built.send(Err(why));
                    }
                }
                let _ = ended.send(());
            }));
        }
        drop(driver_built);

        let mut server = Self {
            gates: Vec::new(),
            control,
            io_ended,
            io_threads,
            gpu_threads,
            inboxes,
            boot_log: Vec::new(),
            journal,
            step_writer,
            io_shards,
            figures: observed.all,
            observer: None,
            stop_observer: Arc::default(),
            gpu_gauges,
            replica_gates,
        };
        let is_auto = settings.threads.io_driver == IoDriver::Auto;
        for built in drivers.iter().take(server.io_threads.len()) {
            match built {
                Ok(driver) => {
                    observatory.set_driver(Driver {
                        name: if driver.starts_with("io_uring") { "io_uring" } else { "epoll" },
                        is_fallback: is_auto && !driver.starts_with("io_uring"),
                    });
                    let line = format!("I/O driver: {driver}");
                    if !boot_log.contains(&line) {
                        boot_log.push(line);
                    }
                }
                Err(why) => {
                    drop(server);
                    let message = format!(
                        "no I/O driver could be set up: {why}. Try --io-driver auto, or a higher \
                         `ulimit -l` for io_uring"
                    );
                    return Err(StartError { message });
                }
            }
        }
        let stop = Arc::clone(&server.stop_observer);
        server.observer = Some(spawn("observer".to_owned(), move || observatory.run(&stop)));
        for (number, gate) in gates.iter_mut().enumerate() {
            let number = u16::try_from(number).expect("no more gates than ports");
            if let Err(why) = gate.open(number, &doors, &server.control, connections) {
                return Err(StartError { message: format!("no thread for a port: {why}") });
            }
            let address = gate.address();
            boot_log.push(match places.get(usize::from(number).wrapping_sub(1)) {
                _ if usize::from(number) > replica_gates => {
                    format!("listening on {scheme}://{address} for /admin too")
                }
                None => format!("listening on {scheme}://{address}"),
                Some(Gpu { model, replica, .. }) => {
                    let name = &served.models[*model].name;
                    format!("listening on {scheme}://{address} for {name}, replica {replica} alone")
                }
            });
        }
        server.gates = gates;
        server.boot_log = boot_log;
        Ok(server)
    }

    /// Where it listens; with port 0 in the settings, the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.gates[0].address()
    }

    /// Where single replicas listen, in the order of the configuration; empty without
    /// `--port-per-replica`.
    pub fn replica_addresses(&self) -> Vec<SocketAddr> {
        self.gates.iter().skip(1).take(self.replica_gates).map(Gate::address).collect()
    }

    /// Where `/admin` is, if it has an address of its own.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.gates.get(1 + self.replica_gates).map(Gate::address)
    }

    /// What a person should know about this start, a line each.
    pub fn boot_log(&self) -> &[String] {
        &self.boot_log
    }

    /// What it has done so far.
    pub fn totals(&self) -> Totals {
        let gpus = self.gpu_gauges.iter().map(|(model, gauges)| (model.as_str(), &**gauges));
        metrics::totals(&self.io_shards, self.figures.iter().map(|figures| &**figures), gpus)
    }

    /// Takes no more connections, lets what is under way finish until `grace` is over, then cuts
    /// it. Returns what the server has done in its life.
    pub fn stop(mut self, grace: Duration) -> Totals {
        self.shut_down(grace);
        self.totals()
    }

    fn shut_down(&mut self, grace: Duration) {
        if self.io_threads.is_empty() {
            return;
        }
        self.gates.iter_mut().for_each(Gate::close);
        drain::drain(&self.control, self.io_threads.len(), &self.io_ended, grace);
        self.io_threads.drain(..).for_each(join);
        self.inboxes.iter().for_each(|inbox| inbox.close());
        self.gpu_threads.drain(..).for_each(join);
        self.stop_observer.store(true, Ordering::Relaxed);
        if let Some(observer) = self.observer.take() {
            observer.thread().unpark();
            join(observer);
        }
        // The last GPU thread has closed the last journal and the last tap.
        let late = |what: &str| {
            eprintln!(
                "llmsimulator: {what} is incomplete: its disk has not taken the end for {:?}",
                drain::DISK_PATIENCE
            );
        };
        if let Some(journal) = self.journal.take()
            && !drain::join_within(journal, drain::DISK_PATIENCE)
        {
            late("the journal");
        }
        if let Some(writer) = self.step_writer.take()
            && !writer.join_within(drain::DISK_PATIENCE)
        {
            late("the step log or trace");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down(Duration::ZERO);
    }
}

/// Who counts into which figures.
struct Figured {
    /// All of them.
    all: Vec<Arc<Figures>>,
    /// All of them, and whose they are.
    seats: Vec<Observed>,
    /// Of each simulated GPU with a timeline of its own.
    gpus: Vec<Arc<Figures>>,
    /// Of each I/O thread: of those without a timeline, and their models.
    here: Vec<Vec<(usize, Arc<Figures>)>>,
}

fn observe(settings: &Settings, places: &[Gpu], io_threads: usize) -> Figured {
    let models = &settings.config.models;
    let mut seats = Vec::new();
    let mut figures = |gpu: &Gpu| {
        let figures = Observatory::figures(&models[gpu.model], settings.summary);
        let (model, replica) = (gpu.model, gpu.replica);
        seats.push(Observed { model, replica, figures: Arc::clone(&figures) });
        figures
    };
    let gpus = places.iter().filter(|gpu| !gpu.is_here).map(&mut figures).collect();
    let here = (0..io_threads).map(|_| {
        let here = places.iter().filter(|gpu| gpu.is_here);
        here.map(|gpu| (gpu.model, figures(gpu))).collect()
    });
    let here = here.collect();
    // In the order of the configuration, as they are shown.
    seats.sort_by_key(|seat| (seat.model, seat.replica));
    let all = seats.iter().map(|seat| Arc::clone(&seat.figures)).collect();
    Figured { all, seats, gpus, here }
}

/// A simulated GPU.
#[derive(Clone, Copy)]
struct Gpu {
    model: usize,
    replica: u16,
    /// It needs no timeline, and runs wherever it is asked.
    is_here: bool,
}

/// All simulated GPUs, in the order of the configuration.
fn places(config: &Config) -> Vec<Gpu> {
    let models = config.models.iter().enumerate();
    let places = models.flat_map(|(model, spec)| {
        let is_here = spec.engine == EngineSpec::Instant;
        (0..spec.replicas.max(1)).map(move |replica| Gpu { model, replica, is_here })
    });
    places.collect()
}

/// The shared port, and one for each of so many replicas if they are wanted. All are taken before
/// any is served, so that one that is not to be had leaves nothing behind.
fn bind(settings: &Settings, replicas: usize) -> Result<Vec<Gate>, StartError> {
    let Settings { host, port, port_per_replica, .. } = settings;
    let mut gates = vec![Gate::bind(host, *port, "--port")?];
    let Some(first) = *port_per_replica else { return Ok(gates) };
    let last = usize::from(first) + replicas - 1;
    let flag = "--port-per-replica";
    if first != 0 && last > usize::from(u16::MAX) {
        let message = format!(
            "{flag} {first} leaves no room for {replicas} replicas: their ports would end at \
             {last}, beyond 65535"
        );
        return Err(StartError { message });
    }
    if first != 0 && (usize::from(first)..=last).contains(&usize::from(*port)) {
        let message = format!(
            "--port {port} is one of the ports {first} to {last} that {flag} gives to the \
             {replicas} replicas: choose one outside"
        );
        return Err(StartError { message });
    }
    for replica in 0..replicas as u16 {
        let port = if first == 0 { 0 } else { first + replica };
        gates.push(Gate::bind(host, port, flag)?);
    }
    Ok(gates)
}

/// A tap for each GPU and the thread that they lead to, if a step log or a trace is wanted.
fn step_taps(
    settings: &Settings,
    gpus: &[Gpu],
    names: &[(String, u16)],
) -> Result<(Vec<Option<Tap>>, Option<StepWriter>), StartError> {
    let named = gpus.iter().zip(names).map(|(gpu, (model, replica))| {
        let blocks = usable_blocks(&settings.config.models[gpu.model].engine);
        (format!("{model}/{replica}"), blocks)
    });
    let logs = &settings.logs;
    let files = StepFiles::create(logs.step_log.as_deref(), logs.trace.as_deref(), named.collect())
        .map_err(|message| StartError { message })?;
    let Some(files) = files else {
        return Ok((gpus.iter().map(|_| None).collect(), None));
    };
    let (writer, taps) = StepWriter::spawn(files)
        .map_err(|why| StartError { message: format!("no thread for --step-log: {why}") })?;
    Ok((taps.into_iter().map(Some).collect(), Some(writer)))
}

fn serve(
    config: Config,
    places: &[Gpu],
    topology: &Topology,
    limits: Limits,
    api_keys: ApiKeys,
    sleepers: Arc<Sleepers>,
    failing: Failing,
) -> Served {
    let on_threads: Vec<usize> = (0..places.len()).filter(|&at| !places[at].is_here).collect();
    let mut homes = vec![None; places.len()];
    for (thread, seats) in topology.gpu.iter().enumerate() {
        for (seat, &gpu) in seats.gpus.iter().enumerate() {
            let home = Home::Thread { thread: thread as u16, seat: seat as u16 };
            homes[on_threads[gpu]] = Some(home);
        }
    }
    let mut replicas: Vec<Vec<Replica>> = config.models.iter().map(|_| Vec::new()).collect();
    let mut seats_here = 0..;
    for (place, (gpu, home)) in places.iter().zip(homes).enumerate() {
        let here = || Home::Here { seat: seats_here.next().expect("endless") };
        let home = home.unwrap_or_else(here);
        replicas[gpu.model].push(Replica { number: gpu.replica, place, home });
    }
    let models = config.models.into_iter().zip(replicas).map(|(spec, replicas)| {
        Model::new(spec.name, spec.context_length, spec.engine, replicas)
            .with_tokenizer(spec.tokenizer)
            .with_reasoning(spec.reasoning)
            .on_gpus(spec.tensor_parallel)
    });
    let version = env!("CARGO_PKG_VERSION");
    Served {
        models: models.collect(),
        responses: Arc::new(config.responses),
        started: clock::unix_seconds(),
        fingerprint: format!("fp_{:010x}", Seed::new(0).with(version.as_bytes()).value() >> 24),
        limits,
        api_keys,
        sleep: Sleep::new(sleepers, (0..places.len()).collect()),
        scope: Scope::Server,
        vocabulary: Arc::default(),
        adapters: Arc::default(),
        stored: Arc::default(),
        faults: failing.faults,
        downs: failing.downs,
        has_admin: failing.has_admin,
    }
}

/// What [`serve`] is told of failures.
struct Failing {
    faults: Arc<Faults>,
    downs: Arc<[Arc<Down>]>,
    has_admin: bool,
}

fn describe(
    settings: &Settings,
    machine: &Machine,
    topology: &Topology,
    open_files: sys::Limit,
) -> Vec<String> {
    let mut log = vec![format!("llmsimulator {}", env!("CARGO_PKG_VERSION"))];
    log.push(format!(
        "processors: {} in the affinity mask, {} usable",
        machine.allowed.len(),
        machine.parallelism
    ));
    log.push(format!("threads: {topology}"));
    let locked = match sys::locked_memory().soft {
        u64::MAX => "unlimited".to_owned(),
        bytes => format!("{} KiB", bytes / 1024),
    };
    log.push(format!("limits: {} open files, locked memory {locked}", open_files.soft));
    match settings.api_keys.len() {
        0 => {}
        1 => log.push("API keys: 1, needed under /v1".to_owned()),
        many => log.push(format!("API keys: {many}, one of them needed under /v1")),
    }
    for rule in &settings.config.faults.rules {
        log.push(format!("fault: {}", rule.text));
    }
    for model in &settings.config.models {
        let engine = match &model.engine {
            EngineSpec::Instant => "instant".to_owned(),
            EngineSpec::FixedRate(spec) => format!(
                "fixed_rate, {} tokens/s in, {} tokens/s out",
                spec.prefill.as_f64(),
                spec.decode.as_f64()
            ),
            EngineSpec::Scheduler(spec) => format!(
                "scheduler, {} blocks of {} tokens, up to {} sequences and {} tokens a step",
                spec.num_blocks, spec.block_size, spec.max_num_seqs, spec.max_num_batched_tokens
            ),
        };
        let replicas = match model.replicas {
            0 | 1 => String::new(),
            many => format!(", {many} replicas"),
        };
        log.push(format!(
            "model {}: {engine}, context {}{replicas}",
            model.name, model.context_length
        ));
    }
    log
}

/// What a thread does before its work; `realtime` is the priority that it is to have, if any.
fn settle(cpu: Option<usize>, realtime: Option<i32>) {
    if let Some(id) = cpu {
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    if let Some(priority) = realtime
        && let Err(why) = sys::realtime(priority)
    {
        eprintln!(
            "llmsimulator: real-time scheduling is refused: {why}. It needs CAP_SYS_NICE or an \
             rtprio limit"
        );
    }
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new()
        .name(name)
        .spawn(work)
        .expect("a process that cannot start a thread cannot serve")
}

/// A thread that panicked has said so already, and the others must still be joined.
fn join(thread: JoinHandle<()>) {
    let _ = thread.join();
}

/// As many as were asked for, if the open files allow it.
fn connection_limit(asked: usize, open_files: u64) -> usize {
    const OURS: u64 = 64;
    asked.min(usize::try_from(open_files.saturating_sub(OURS)).unwrap_or(usize::MAX)).max(1)
}

fn entropy(thread: usize) -> u64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    let seed = Seed::new(now).with(&std::process::id().to_le_bytes());
    seed.with(&thread.to_le_bytes()).value()
}

fn span(duration: Duration) -> SimSpan {
    SimSpan::from_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4))
}
