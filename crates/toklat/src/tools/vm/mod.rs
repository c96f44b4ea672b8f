//! `toklat vm run`: a virtual machine on a switch, in one command, which leaves nothing behind.
//!
//! Three processes run: this one, QEMU, and a watcher. When this process ends in any way, the
//! watcher removes the port, if this process made it. If this process is killed, the watcher also
//! ends QEMU. The watcher's standard input is a pipe that only this process holds. A parent-death
//! signal would not suffice: the kernel clears it when QEMU changes its user (`-- -runas nobody`).

use std::ffi::OsString;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use frame::Mac;
use hyper::Method;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::json;

use ::vm::{
    Accelerator, Backend, Boot, Console, Machine, Model, Nic, Qemu, QemuError, guest, quoted,
};

mod given;
use self::given::Given;
use crate::api::PortInfo;
use crate::cli::port_options::{KindOptions, RuleOptions};
use crate::tools::{session, uplink};
use client::name::{PortName, SwitchName};
use client::{Client, ClientError, Global, Result, UsageError};
use jail::child::ChildSetup;
use jail::parent_death;

/// Time limit for QEMU to end after a signal.
const END: Duration = Duration::from_secs(5);

/// What can be done with virtual machines.
#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// Run a virtual machine with a NIC on a switch, until it powers off
    #[command(after_help = "Examples:\n  \
        toklat vm run --switch vale0 --test-guest --address 10.0.0.1/24\n  \
        toklat vm run --switch vale0 --image debian.qcow2 --memory 2048 --cpus 2 --uplink\n  \
        toklat vm run --switch vale0 --kernel bzImage --initrd rd --append console=ttyS0\n  \
        toklat vm run --switch vale0 --image disk.img --print -- -vnc :1\n\n\
        On a terminal, Ctrl-A x ends it at once, and Ctrl-A c is QEMU's monitor.")]
    Run(Box<RunArgs>),
    /// Clean up after `vm run`, which starts this
    #[command(hide = true)]
    Watch(WatchArgs),
}

impl VmCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// If the machine cannot be made, or its commands fail.
    pub fn run(&self, global: &Global) -> Result {
        match self {
            Self::Run(args) => run(args, global),
            Self::Watch(args) => watch(args, global),
        }
    }
}

/// Options of `toklat vm run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// The switch that the machine is plugged into
    #[arg(long, value_name = "SWITCH")]
    switch: SwitchName,
    /// Connect the switch to the outside: run toklat uplink with the machine, unless the switch has
    /// one
    #[arg(long)]
    uplink: bool,
    /// Name of the machine's port. An existing port (--vhost-user or --nic) is used unchanged, and
    /// stays [default: vm and this process's number]
    #[arg(long, value_name = "NAME")]
    port: Option<String>,
    /// The NIC that the guest sees. e1000 and pcnet are QEMU's, behind a stream socket; those with
    /// a number are emulated by the port (QEMU 10.1 or later) [default: an existing port's, else
    /// virtio]
    #[arg(long, value_enum)]
    nic: Option<Model>,
    /// The NIC's MAC address [default: derived from the port's name]
    #[arg(long)]
    mac: Option<Mac>,
    /// Queue pairs
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    queues: u16,
    /// Use packed virtqueues instead of split ones
    #[arg(long)]
    packed: bool,
    /// Offer a shared status block; see toklat port add
    #[arg(long)]
    csb: bool,
    /// Combine sent frames under heavy traffic; see toklat port add
    #[arg(long, value_name = "N,T")]
    combine: Option<String>,
    /// How doorbells reach the card; see toklat port add
    #[arg(long, value_name = "trap|shared")]
    doorbell: Option<String>,
    /// Coalesce interrupts; see toklat port add [default: sent=1000 for NICs that the port
    /// emulates; delay=500,adaptive for virtio without KVM; else off]
    #[arg(long, value_name = "off|rate=N,delay=US,adaptive,sent=US")]
    interrupts: Option<String>,
    /// MiB of memory
    #[arg(long, default_value_t = 512, value_name = "MIB", value_parser = clap::value_parser!(u32).range(64..))]
    memory: u32,
    /// Number of processors
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    cpus: u8,
    /// Give the machine an IOMMU, and put the NIC behind it; the guest's kernel needs
    /// intel_iommu=on
    #[arg(long)]
    iommu: bool,
    /// The accelerator [default: kvm if it works, else tcg]
    #[arg(long, value_enum)]
    accel: Option<Accelerator>,
    /// The QEMU program [default: $TOKLAT_QEMU, else the one in PATH, else that of cargo xtask
    /// qemu]
    #[arg(long, value_name = "PROGRAM")]
    qemu: Option<PathBuf>,
    #[command(flatten)]
    boot: BootArgs,
    /// Print QEMU's command line without running it
    #[arg(long)]
    print: bool,
    /// Further arguments for QEMU
    #[arg(last = true, value_name = "QEMU-ARGUMENT")]
    more: Vec<OsString>,
}

/// What it boots.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "What it boots")]
struct BootArgs {
    /// A disk image, qcow2 or raw
    #[arg(long, value_name = "FILE", group = "boots", required = true)]
    image: Option<PathBuf>,
    /// Discard what the guest writes to the disk
    #[arg(long)]
    snapshot: bool,
    /// A kernel
    #[arg(long, value_name = "FILE", group = "boots")]
    kernel: Option<PathBuf>,
    /// The kernel's initramfs
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// The kernel's command line [default: console=ttyS0]. With the test guest: words to add to its
    /// own, such as toklat.driver=toklat or e1000.InterruptThrottleRate=0
    #[arg(long, value_name = "TEXT")]
    append: Option<String>,
    /// Boot the test guest, with ping, iperf3 and a packet generator (built by cargo xtask guest)
    #[arg(long, group = "boots")]
    test_guest: bool,
    /// The test guest's address, such as 10.0.0.1/24
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    /// Shell commands for the test guest, after which it powers off
    #[arg(long, value_name = "COMMANDS")]
    run: Option<String>,
}

impl BootArgs {
    fn boot(&self) -> Result<Boot> {
        // clap ignores `requires` among options that exclude each other.
        let misplaced = [
            (self.image.is_none() && self.snapshot, "--snapshot goes with --image"),
            (self.kernel.is_none() && self.initrd.is_some(), "--initrd goes with --kernel"),
            (!self.test_guest && self.address.is_some(), "--address goes with --test-guest"),
            (!self.test_guest && self.run.is_some(), "--run goes with --test-guest"),
        ];
        if let Some((_, why)) = misplaced.into_iter().find(|(wrong, _)| *wrong) {
            bail!(UsageError::new(why));
        }
        if self.test_guest {
            let dir = guest::find()?;
            let (address, run) = (self.address.as_deref(), self.run.as_deref());
            return Ok(guest::boot_with(&dir, address, self.append.as_deref(), run)?);
        }
        let there = |path: &Path| -> Result<PathBuf> {
            ensure!(
                path.is_file(),
                "There is no file {}; name the one to boot from",
                path.display()
            );
            Ok(path.to_owned())
        };
        if let Some(image) = &self.image {
            return Ok(Boot::Image { path: there(image)?, snapshot: self.snapshot });
        }
        let Some(kernel) = &self.kernel else { bail!(UsageError::new("say what it boots")) };
        let initrd = self.initrd.as_deref().map(there).transpose()?;
        let append = self.append.clone().unwrap_or_else(|| "console=ttyS0".to_owned());
        Ok(Boot::Kernel { kernel: there(kernel)?, initrd, append })
    }
}

impl RunArgs {
    /// The machine's NIC, at an existing port, or at a new port with this socket.
    fn nic(&self, port: &PortName, given: Option<&Given>, socket: PathBuf) -> Result<Nic> {
        let given_model = given.map(|given| given.model);
        let model = self.nic.or(given_model).unwrap_or(Model::Virtio);
        if !model.kind().queues && (self.queues > 1 || self.packed) {
            bail!(UsageError::new("--queues and --packed are virtio's"));
        }
        if model == Model::Virtio && self.iommu {
            bail!(UsageError::new("--iommu is for an emulated NIC: say which by --nic"));
        }
        if let Some(given) = given {
            self.fits(port, given)?;
        }
        let backend = model.backend(given.map_or(socket, |given| given.socket.clone()));
        let mac = self.mac.or_else(|| given.and_then(|given| given.mac));
        let mac = mac.unwrap_or_else(|| Mac::of_name(&port.to_string()));
        Ok(Nic { model, mac, backend, queues: self.queues, packed: self.packed })
    }

    /// Whether the machine can be plugged into an existing port.
    fn fits(&self, port: &PortName, given: &Given) -> Result {
        let options = [&self.combine, &self.doorbell, &self.interrupts];
        if self.csb || options.into_iter().any(Option::is_some) {
            bail!(UsageError::new(
                "--csb, --combine, --doorbell and --interrupts are for a port that is made; see toklat port set"
            ));
        }
        if given.model.emulated().is_some() && self.mac.is_some() {
            bail!(UsageError::new("--mac is for a port that is made: its NIC has the port's"));
        }
        if let Some(model) = self.nic.filter(|model| *model != given.model) {
            bail!("{port} is there, and is not for --nic {}; name another --port", name_of(model));
        }
        ensure!(
            self.queues <= given.queues,
            "{port} has {} pairs of queues at most; say --queues {0}",
            given.queues
        );
        ensure!(!given.taken || self.print, "{port} has a front end already; name another --port");
        Ok(())
    }

    fn machine(&self, port: &PortName, nic: Nic) -> Result<Machine> {
        let boot = self.boot.boot()?;
        let accelerator = self.accel.unwrap_or_else(|| {
            let (accelerator, why) = Accelerator::choose();
            if let Some(why) = why {
                eprintln!("toklat: without KVM, which is slow: {why}");
            }
            accelerator
        });
        let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        Ok(Machine {
            name: port.to_string().replace(':', "-"),
            accelerator,
            memory: self.memory,
            cpus: self.cpus,
            boot,
            iommu: self.iommu,
            nic,
            console: if terminal { Console::Terminal } else { Console::Plain },
            more: self.more.clone(),
        })
    }

    /// Arguments of `toklat port add` in addition to [`kind_options`].
    fn port_options(&self, nic: &Nic, accelerator: Accelerator) -> Result<Vec<OsString>> {
        let mut options: Vec<OsString> = Vec::new();
        if self.csb {
            options.push("--csb".into());
        }
        if let Some(combine) = &self.combine {
            options.extend(["--combine".into(), combine.into()]);
        }
        if let Some(doorbell) = &self.doorbell {
            options.extend(["--doorbell".into(), doorbell.into()]);
        }
        let emulated = nic.model.emulated().is_some();
        if !options.is_empty() && !emulated {
            bail!(UsageError::new(
                "--csb, --combine and --doorbell are for NICs that the port emulates"
            ));
        }
        let usual = nic.model.usual_interrupts(accelerator);
        let interrupts = self.interrupts.as_deref().or(usual);
        options.extend(interrupts.iter().flat_map(|how| ["--interrupts".into(), how.into()]));
        Ok(options)
    }

    fn port(&self) -> Result<PortName> {
        let port = self.port.clone().unwrap_or_else(|| format!("vm{}", std::process::id()));
        Ok(format!("{}:{port}", self.switch).parse::<PortName>()?)
    }
}

fn run(args: &RunArgs, global: &Global) -> Result {
    let port = args.port()?;
    let socket = global.dir().join(format!("{}.{}.sock", port.switch, port.port));
    let given = match Given::find(global, &port) {
        // The command may be printed for another machine. Otherwise the daemon checks it when the
        // port is made.
        Err(error) if error.is::<ClientError>() => None,
        found => found?,
    };
    let nic = args.nic(&port, given.as_ref(), socket)?;
    let least = nic.model.least();
    let qemu = match Qemu::at_least(args.qemu.as_deref(), least) {
        Err(QemuError::Missing { program }) if args.print => {
            Qemu { program: program.into(), version: least }
        }
        found => found?,
    };
    let machine = args.machine(&port, nic)?;
    let mut command = Command::new(&qemu.program);
    command.args(machine.arguments(qemu.version));
    let line = quoted(std::iter::once(command.get_program()).chain(command.get_args()));
    let mut options = kind_options(&machine.nic);
    options.extend(args.port_options(&machine.nic, machine.accelerator)?);
    if args.print {
        return print(&port, given.is_some(), &options, &line);
    }
    let stop = session::stop_on_signals()?;
    if given.is_none() {
        add_port(global, &port, &options)?;
    }
    let mut watcher = Watcher::start(global, &port, given.is_some())?;
    let _uplink = if args.uplink { Uplink::start(global, &port.switch)? } else { None };
    eprintln!("toklat: {line}");
    let mut child = ChildSetup::new()
        .equip(&mut command)
        .spawn()
        .with_context(|| format!("Cannot start {}", qemu.program.display()))?;
    watcher.watch(&child)?;
    let status = wait(&mut child, &stop)?;
    drop(watcher);
    ended(status, args.boot.run.is_some())
}

/// Prints the command that makes the port, and QEMU's command line.
fn print(port: &PortName, is_given: bool, options: &[OsString], line: &str) -> Result {
    let options = quoted(options.iter().map(OsString::as_os_str));
    let first = if is_given {
        format!("# {port} is there")
    } else {
        format!("# toklat port add {port} {options}")
    };
    writeln!(std::io::stdout().lock(), "{first}\n{line}")?;
    Ok(())
}

/// The options of `toklat port add` that make its port.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct AddLine {
    #[command(flatten)]
    kind: KindOptions,
    #[command(flatten)]
    policy: RuleOptions,
}

/// The options of `toklat port add` that select the port's kind.
fn kind_options(nic: &Nic) -> Vec<OsString> {
    let (option, path) = match &nic.backend {
        Backend::VhostUser(path) => ("--vhost-user", path),
        Backend::Stream(path) | Backend::Peer { path, .. } => ("--stream", path),
        Backend::VfioUser(path) => return emulated_options(nic, path),
        Backend::Tap { ifname, .. } => return vec!["--tap".into(), ifname.into()],
    };
    let mut options = vec![option.into(), path.into()];
    if nic.queues > 1 {
        options.extend(["--queues".into(), nic.queues.to_string().into()]);
    }
    options
}

/// Works as `kind_options`, for a device that the port emulates. The port has the MAC address.
fn emulated_options(nic: &Nic, socket: &Path) -> Vec<OsString> {
    let model = nic.model.emulated().map(|model| model.names().name.to_owned());
    let mac = nic.mac.to_string();
    let mut options: Vec<OsString> = vec!["--nic".into(), model.unwrap_or_default().into()];
    options.extend(["--socket".into(), socket.into(), "--mac".into(), mac.into()]);
    options
}

fn add_port(global: &Global, port: &PortName, options: &[OsString]) -> Result {
    let AddLine { kind, policy } = AddLine::try_parse_from(options)?;
    let mut body = policy.patch();
    body.insert("name".into(), json!(port.port));
    body.insert("kind".into(), json!(kind.kind(&port.port)?));
    let path = format!("{}/ports", port.switch.path());
    let _: PortInfo = Client::connect(global)?.send(Method::POST, &path, &body)?;
    Ok(())
}

/// The model's name, as `--nic` takes it.
fn name_of(model: Model) -> String {
    model.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Waits until QEMU ends, and ends it when this process is told to end.
fn wait(child: &mut Child, stop: &std::sync::atomic::AtomicBool) -> Result<ExitStatus> {
    let mut told: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match told {
            None if stop.load(std::sync::atomic::Ordering::Relaxed) => {
                signal(child, Signal::TERM);
                told = Some(Instant::now());
            }
            Some(at) if at.elapsed() > END => signal(child, Signal::KILL),
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// QEMU was not reaped yet, so the number is still its own.
fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Interprets QEMU's exit status: a test guest with commands reports their status.
fn ended(status: ExitStatus, commands: bool) -> Result {
    match status.code().and_then(guest::status) {
        Some(0) => Ok(()),
        Some(status) => bail!("The guest's commands failed (status {status})"),
        None if commands => bail!("The guest ended before its commands ({status})"),
        None if status.success() => Ok(()),
        None => bail!("QEMU failed ({status})"),
    }
}

/// The process that cleans up. Dropping this value waits until the process has done so.
struct Watcher {
    child: Child,
}

impl Watcher {
    /// Starts the watcher. If `stay` is set, it leaves the port.
    fn start(global: &Global, port: &PortName, stay: bool) -> Result<Self> {
        let program = std::env::current_exe().context("Cannot tell where this program is")?;
        let mut command = Command::new(program);
        command.arg("--dir").arg(global.dir()).args(["vm", "watch", &port.to_string()]);
        command.args(stay.then_some("--stay"));
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let child = parent_death::in_its_own_session(&mut command)
            .spawn()
            .context("Cannot start the process that cleans up")?;
        Ok(Self { child })
    }

    /// Tells the watcher which QEMU to end.
    fn watch(&mut self, qemu: &Child) -> Result {
        let stdin = self.child.stdin.as_mut().context("It has a pipe")?;
        writeln!(stdin, "{}", qemu.id()).context("The process that cleans up is gone")
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The machine's uplink. It ends when this is dropped, or when this process ends.
struct Uplink(Child);

impl Uplink {
    /// Starts the uplink; `None` if the switch has one.
    fn start(global: &Global, switch: &SwitchName) -> Result<Option<Self>> {
        let there: PortName = format!("{switch}:{}", uplink::PORT).parse()?;
        if Client::connect(global)?.get::<PortInfo>(&there.path()).is_ok() {
            return Ok(None);
        }
        let program = std::env::current_exe().context("Cannot tell where this program is")?;
        let mut command = Command::new(program);
        command.arg("--dir").arg(global.dir()).args(["uplink", &switch.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let command =
            parent_death::signal(parent_death::in_its_own_session(&mut command), Signal::TERM);
        Ok(Some(Self(command.spawn().context("Cannot start toklat uplink")?)))
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        signal(&self.0, Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Options of `toklat vm watch`.
#[derive(Clone, Debug, Args)]
pub struct WatchArgs {
    /// The port to remove
    port: PortName,
    /// Keep the port
    #[arg(long)]
    stay: bool,
}

/// Waits until the parent process has ended. Then ends the QEMU that it was told of, and removes
/// the port.
fn watch(args: &WatchArgs, global: &Global) -> Result {
    let mut stdin = std::io::stdin().lock();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdin, &mut line)?;
    // The pidfd is opened while the parent lives, so it is the right process.
    let qemu = line.trim().parse().ok().and_then(Pid::from_raw);
    let qemu = qemu.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    stdin.read_to_end(&mut Vec::new())?;
    if let Some(qemu) = qemu {
        let _ = rustix::process::pidfd_send_signal(&qemu, Signal::KILL);
    }
    if args.stay {
        return Ok(());
    }
    Ok(Client::connect(global)?.without_progress().delete(&args.port.path())?)
}
