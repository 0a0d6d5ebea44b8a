//! From settings to a running server, and back to nothing.
//!
//! The invariant: [`Server::start`] either gives back a server that answers on its address, or an
//! error and nothing half-started.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam::channel::{self, Receiver};
use llmsim_engine::config::Config;
use llmsim_engine::observe::{Figures, Recorder};
use llmsim_engine::seed::Seed;
use llmsim_engine::sim::EngineSpec;
use llmsim_engine::units::SimSpan;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::args::{ApiKeys, IoDriver, Pinning, Priority, Settings};
use crate::clock::{self, Clock};
use crate::drain::{self, Control};
use crate::gpu_thread::{GpuThread, Seat};
use crate::helper;
use crate::io_thread::{Arrival, Door, IoThread, build_runtime};
use crate::journal;
use crate::metrics::observatory::{Driver, Observatory, Observed};
use crate::metrics::record::{GpuGauges, GpuShard, IoShard};
use crate::metrics::{self, Totals};
use crate::ring::{Inbox, reports};
use crate::served::{Home, Limits, Model, Served, Sleep};
use crate::step_writer::{StepFiles, StepWriter, Tap, usable_blocks};
use crate::sys;
use crate::topology::{self, Machine, Topology, Wishes};

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    control: Arc<Control>,
    io_ended: Receiver<()>,
    io_threads: Vec<JoinHandle<()>>,
    gpu_threads: Vec<JoinHandle<()>>,
    inboxes: Vec<Arc<Inbox>>,
    acceptor: Option<JoinHandle<()>>,
    boot_log: Vec<String>,
    journal: Option<JoinHandle<()>>,
    step_writer: Option<StepWriter>,
    io_shards: Vec<Arc<IoShard>>,
    figures: Vec<Arc<Figures>>,
    observer: Option<JoinHandle<()>>,
    stop_observer: Arc<AtomicBool>,
    /// In the order of the configuration.
    gpu_gauges: Vec<(String, Arc<GpuGauges>)>,
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
        let listener = Arc::new(listen(&settings.host, settings.port)?);
        let address = listener.local_addr().map_err(|why| StartError {
            message: format!("the address that was bound cannot be read back: {why}"),
        })?;

        let gpus = gpus(&settings.config);
        let topology = topology::plan(
            &machine,
            gpus.len(),
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
        let observed = observe(&settings, &gpus, topology.io.len());
        let io_shards: Vec<_> = topology
            .io
            .iter()
            .map(|_| {
                let models = settings.config.models.len();
                Arc::new(IoShard::new(models, settings.summary.token_samples))
            })
            .collect();
        let gpu_shards: Vec<_> =
            topology.gpu.iter().map(|_| Arc::new(GpuShard::default())).collect();
        let observatory = Arc::new(Observatory::new(
            clock,
            &settings.config.models,
            observed.seats,
            io_shards.clone(),
            gpu_shards.clone(),
            settings.metrics.clone(),
            settings.summary,
        ));
        let connections = connection_limit(settings.limits.max_connections, open_files.soft);
        let served = Arc::new(serve(
            settings.config,
            &gpus,
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
            Arc::clone(&observatory.sleep),
        ));

        let doors: Vec<Arc<Door>> = topology.io.iter().map(|_| Arc::new(Door::new())).collect();
        let control = Arc::new(Control::new(doors.clone()));
        let inboxes: Vec<Arc<Inbox>> =
            topology.gpu.iter().map(|_| Arc::new(Inbox::new())).collect();
        let is_realtime = settings.threads.priority == Priority::Realtime;

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
                settle(cpu, is_realtime);
                gpu_thread.run();
            }));
        }

        // Helpers end when the last I/O thread drops its way to them.
        let (helper, helper_thread) = helper::queue(connections);
        for number in 0..(machine.parallelism / 4).clamp(1, 4) {
            let helper_thread = helper_thread.clone();
            drop(spawn(format!("helper-{number}"), move || helper_thread.run()));
        }

        // Its own, so that a scrape never waits behind the parsing of long prompts.
        let (metrics_helper, helper_thread) = helper::queue(connections);
        drop(spawn("helper-metrics".to_owned(), move || helper_thread.run()));

        let (ended, io_ended) = channel::bounded(topology.io.len());
        let (driver_built, drivers) = channel::bounded(topology.io.len());
        let mut io_threads = Vec::new();
        for (number, rings) in rings.into_iter().enumerate() {
            let shard = Arc::clone(&io_shards[number]);
            let io_thread = IoThread {
                number: u8::try_from(number).expect("the topology keeps to a few I/O threads"),
                clock,
                served: Arc::clone(&served),
                door: Arc::clone(&doors[number]),
                rings,
                inboxes: inboxes.clone(),
                helper: helper.clone(),
                metrics_helper: metrics_helper.clone(),
                control: Arc::clone(&control),
                shard,
                figures: observed.here[number].clone(),
                observatory: Arc::clone(&observatory),
                entropy: entropy(number),
            };
            let (cpu, driver) = (topology.io[number], settings.threads.io_driver);
            let (ended, driver_built) = (ended.clone(), driver_built.clone());
            io_threads.push(spawn(format!("io-{number}"), move || {
                settle(cpu, is_realtime);
                match build_runtime(driver) {
                    Ok((mut runtime, why)) => {
                        let _ = driver_built.send(Ok(why));
                        io_thread.run(&mut runtime);
                    }
                    Err(why) => {
                        let _ = driver_built.send(Err(why));
                    }
                }
                let _ = ended.send(());
            }));
        }
        drop(driver_built);

        let acceptor = {
            let listener = Arc::clone(&listener);
            let control = Arc::clone(&control);
            spawn("acceptor".to_owned(), move || accept(&listener, &doors, &control, connections))
        };
        let mut server = Self {
            address,
            listener,
            control,
            io_ended,
            io_threads,
            gpu_threads,
            inboxes,
            acceptor: Some(acceptor),
            boot_log: Vec::new(),
            journal,
            step_writer,
            io_shards,
            figures: observed.all,
            observer: None,
            stop_observer: Arc::default(),
            gpu_gauges,
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
        boot_log.push(format!("listening on http://{address}"));
        server.boot_log = boot_log;
        Ok(server)
    }

    /// Where it listens; with port 0 in the settings, the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
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
        let Some(acceptor) = self.acceptor.take() else { return };
        // Wakes the acceptor out of its wait.
        let _ = SockRef::from(&*self.listener).shutdown(std::net::Shutdown::Both);
        join(acceptor);
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
        self.journal.take().into_iter().for_each(join);
        self.step_writer.take().into_iter().for_each(StepWriter::join);
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
    /// Of each I/O thread: for models without a timeline, by their place.
    here: Vec<Vec<Option<Arc<Figures>>>>,
}

fn observe(settings: &Settings, gpus: &[Gpu], io_threads: usize) -> Figured {
    let models = &settings.config.models;
    let mut seats = Vec::new();
    let mut figures = |model: usize, replica: u16| {
        let figures = Observatory::figures(&models[model], settings.summary);
        seats.push(Observed { model, replica, figures: Arc::clone(&figures) });
        figures
    };
    let gpus = gpus.iter().map(|gpu| figures(gpu.model, gpu.replica as u16)).collect();
    let here = (0..io_threads).map(|_| {
        let place = models.iter().enumerate();
        place
            .map(|(place, model)| (model.engine == EngineSpec::Instant).then(|| figures(place, 0)))
            .collect()
    });
    let here = here.collect();
    // In the order of the configuration, as they are shown.
    seats.sort_by_key(|seat| (seat.model, seat.replica));
    let all = seats.iter().map(|seat| Arc::clone(&seat.figures)).collect();
    Figured { all, seats, gpus, here }
}

/// A simulated GPU with a timeline of its own.
struct Gpu {
    model: usize,
    replica: usize,
}

fn gpus(config: &Config) -> Vec<Gpu> {
    let mut gpus = Vec::new();
    for (model, spec) in config.models.iter().enumerate() {
        if spec.engine != EngineSpec::Instant {
            let replicas = 0..usize::from(spec.replicas.max(1));
            gpus.extend(replicas.map(|replica| Gpu { model, replica }));
        }
    }
    gpus
}

/// A tap for each GPU and the thread that they lead to, if a step log or a trace is wanted.
fn step_taps(
    settings: &Settings,
    gpus: &[Gpu],
    names: &[(String, usize)],
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
    gpus: &[Gpu],
    topology: &Topology,
    limits: Limits,
    api_keys: ApiKeys,
    sleep: Arc<Sleep>,
) -> Served {
    let mut homes: Vec<Vec<Home>> = config.models.iter().map(|_| Vec::new()).collect();
    for (thread, seats) in topology.gpu.iter().enumerate() {
        for (seat, &gpu) in seats.gpus.iter().enumerate() {
            homes[gpus[gpu].model].push(Home::Thread { thread: thread as u16, seat: seat as u16 });
        }
    }
    let models = config.models.into_iter().zip(homes).map(|(spec, mut homes)| {
        if homes.is_empty() {
            homes.push(Home::Here);
        }
        Model::new(spec.name, spec.context_length, spec.engine, homes)
    });
    let version = env!("CARGO_PKG_VERSION");
    Served {
        models: models.collect(),
        responses: config.responses,
        started: clock::unix_seconds(),
        fingerprint: format!("fp_{:010x}", Seed::new(0).with(version.as_bytes()).value() >> 24),
        limits,
        api_keys,
        sleep,
        vocabulary: Mutex::default(),
    }
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

fn listen(host: &str, port: u16) -> Result<TcpListener, StartError> {
    let failed = |why: io::Error| {
        let hint = match why.kind() {
            io::ErrorKind::AddrInUse => {
                "; another program uses the port: stop it, or choose another with --port"
            }
            io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege",
            io::ErrorKind::AddrNotAvailable => "; this machine has no such address: see --host",
            _ => "",
        };
        StartError { message: format!("cannot listen on {host}:{port}: {why}{hint}") }
    };
    let addresses = (host, port).to_socket_addrs().map_err(failed)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match bind(address) {
            Ok(listener) => return Ok(listener),
            Err(why) => last = why,
        }
    }
    Err(failed(last))
}

/// Without SO_REUSEPORT: with it, a second server on the same port would start and take half of the
/// connections.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    // A thousand clients that connect at once are not made to wait a second for their retry.
    const BACKLOG: i32 = 4096;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Takes connections and deals them out in turn until the listener is shut down.
fn accept(listener: &TcpListener, doors: &[Arc<Door>], control: &Control, limit: usize) {
    let mut next = 0;
    loop {
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(why) if why.raw_os_error() == Some(libc::EINVAL) => return,
            Err(why) => {
                // Out of files or memory: the connection stays in the backlog.
                if matches!(why.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) {
                    thread::sleep(Duration::from_millis(10));
                }
                continue;
            }
        };
        let open = control.connection_opened();
        // Some more are taken in to be told so; beyond that the connection is just closed.
        if open > limit + 256 || prepare(&socket).is_err() {
            control.connection_closed();
            continue;
        }
        let mut arrival = Arrival { socket, turned_away: open > limit };
        let door = &doors[next % doors.len()];
        next += 1;
        while let Err(back) = door.arrivals.push(arrival) {
            arrival = back;
            door.bell.ring();
            thread::sleep(Duration::from_millis(1));
        }
        door.bell.ring();
    }
}

fn prepare(socket: &std::net::TcpStream) -> io::Result<()> {
    // With the default the kernel takes 4 MB of a stream that nobody reads.
    const SEND_BUFFER: usize = 64 * 1024;
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_send_buffer_size(SEND_BUFFER)
}

/// What a thread does before its work.
fn settle(cpu: Option<usize>, is_realtime: bool) {
    if let Some(id) = cpu {
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    if is_realtime && let Err(why) = sys::realtime(1) {
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
