//! The process that drives a card. It opens the card and the port, shows the card the buffers of
//! the port's region and a few pages for its rings, and gives up everything else. Then it moves
//! frames between them.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use card::vfio::{self, Card, VfioError};
use card::{Bridge, Buffers, Given, Model, Nic};
use dataplane::config::Policy;
use driver::{Dma, Lent};
use host::part::Part;
use jail::{Jail, Wall, Walls};
use netring::layout::SLOTS;
use netring::{Interest, Open, PortError, Region, RegionConfig};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::process::{Resource, Rlimit};
use shmem::{Memfd, Pages};

use super::driven::{MAX_REPORT, Report, State};

/// Bytes for the card's rings, and the card's addresses of them and of frames: low enough for all
/// cards, and far from what a platform keeps for itself.
const RINGS: usize = 64 << 10;
const RINGS_AT: u64 = 2 << 20;
const FRAMES_AT: u64 = 16 << 20;
/// Frames each way in a turn.
const BUDGET: usize = 64;
/// How long to poll after the last frame, before the process sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// The time between two looks at the carrier and the card's counts.
const LOOK: Duration = Duration::from_secs(1);
/// Walls that need another process, and those that its supervisor has raised before it ran.
const NAMESPACES: [Wall; 7] = [
    Wall::UserNamespace,
    Wall::Root,
    Wall::ProcessNamespace,
    Wall::IpcNamespace,
    Wall::NameNamespace,
    Wall::NetworkNamespace,
    Wall::CgroupNamespace,
];

/// Options of `toklat card-process`.
#[derive(Debug, clap::Args)]
pub struct CardProcessArgs {
    /// The card's PCI address
    #[arg(long)]
    card: String,
    /// The port
    #[arg(long)]
    port: String,
    /// The largest payload of a frame in bytes
    #[arg(long)]
    mtu: u16,
    /// Do not start without all walls
    #[arg(long)]
    require_walls: bool,
}

/// Drives the card until the port is gone, or the card cannot be driven. Reports the reason to the
/// supervisor, which logs it if it is new.
pub fn run(args: &CardProcessArgs, dir: &Path) {
    shmem::guard::install();
    if let Err(error) = drive(args, dir) {
        report(&Report::Failed(format!("{error:#}")));
    }
}

/// Reports to the supervisor, if that is there and reads.
fn report(report: &Report) {
    let Ok(mut line) = serde_json::to_vec(report) else { return };
    line.push(b'\n');
    if line.len() <= MAX_REPORT {
        // A pipe takes that much whole or not at all. Without a reader it is lost.
        let _ = rustix::io::write(std::io::stdout(), &line);
    }
}

fn drive(args: &CardProcessArgs, dir: &Path) -> anyhow::Result<()> {
    let mut card = Card::open(&args.card).map_err(explained)?;
    let model = Model::of(&card)?;
    let (receives, sends) = (model.receives(), model.sends());
    // Only root may raise the limit. Without, what is too much is refused below.
    let none = Rlimit { current: None, maximum: None };
    let _ = rustix::process::setrlimit(Resource::Memlock, none);
    let config = RegionConfig::ports(1, 1, SLOTS);
    let region = Region::create(config.buffers(2 * SLOTS + receives + sends))?;
    let open = Open::new(&args.port).directory(dir).existing();
    let port = open.slots(SLOTS).in_region(&region).open()?;
    card.map_part(region.mapping(), Buffers::part(&region), FRAMES_AT)?;
    let buffers = Buffers::take(&region, (receives, sends), FRAMES_AT)?;
    let rings = Memfd::create("toklat-card", RINGS, Pages::Small)?.map()?;
    card.map(&rings, RINGS_AT)?;
    let mut dma = Dma::new(rings, 0, RINGS, RINGS_AT).context("The rings are not mapped")?;
    let lent = buffers.lent();
    let given = Given {
        interrupts: true,
        promiscuous: true,
        long_frames: args.mtu > Policy::MTU,
        lent: Some(&lent),
        block: false,
    };
    let (nic, calls) = Nic::bring_up(card, &mut dma, given)?;
    report(&Report::Walls(confine(args)?));
    let bridge = Bridge::new(nic, port, buffers, args.mtu);
    Driver { bridge, calls, model, mtu: args.mtu, missed: 0, said: None }.serve()
}

/// The error with what makes the card's files open in the packaged service, if that is the remedy.
fn explained(error: VfioError) -> anyhow::Error {
    if let VfioError::Open { path, source } = &error {
        let remedy = Part::Cards.remedy(source, "");
        if !remedy.is_empty() {
            return anyhow::anyhow!("{} cannot be opened: {source}; {remedy}", path.display());
        }
    }
    error.into()
}

/// Gives up all that the process does not need any more. Beside the standard streams it has only
/// what it opened itself (`ChildSetup`).
fn confine(args: &CardProcessArgs) -> anyhow::Result<Walls> {
    let out = std::io::stdout();
    let flags = rustix::fs::fcntl_getfl(&out)? | OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&out, flags)?;
    let user = jail::user::dedicated(&format!("toklat card {}", args.port));
    let jail =
        Jail::new(user).without(&NAMESPACES).without(&[Wall::Descriptors, Wall::SystemCalls]);
    let mut walls = jail.enter(&[])?.walls;
    if user.is_none() {
        walls.note(Wall::User, Err(jail::user::NOT_ROOT.into()));
    }
    let sealed = match dataplane::sandbox::is_wanted() {
        true => jail::calls::kill_others(&CALLS).map_err(|error| error.to_string()),
        false => Err(format!("{} is off", dataplane::sandbox::SWITCH)),
    };
    walls.note(Wall::SystemCalls, sealed);
    if let (true, Some(refused)) = (args.require_walls, walls.refused.first()) {
        bail!("{} cannot be raised, and all walls are required: {}", refused.wall, refused.reason);
    }
    Ok(walls)
}

/// Calls beside those of every sealed process: eventfds are read, and the card is asked.
const CALLS: [jail::calls::Beside; 4] = {
    let [ioctl, read, write] = vfio::CALLS;
    [(libc::SYS_read, None), ioctl, read, write]
};

struct Driver {
    bridge: Bridge<Nic>,
    /// The card's interrupts.
    calls: Vec<OwnedFd>,
    model: &'static Model,
    mtu: u16,
    missed: u64,
    said: Option<State>,
}

impl Driver {
    fn serve(&mut self) -> anyhow::Result<()> {
        let (mut moved_at, mut look_at) = (Instant::now(), Instant::now());
        loop {
            let moved = self.bridge.turn(BUDGET)?;
            let now = Instant::now();
            if now >= look_at {
                self.look();
                look_at = now + LOOK;
            }
            if moved > 0 {
                moved_at = now;
            } else if now - moved_at >= SPIN {
                self.sleep(look_at.saturating_duration_since(now))?;
                moved_at = Instant::now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Reports the card's state, if it has changed.
    fn look(&mut self) {
        let counts = self.bridge.counts();
        let nic = self.bridge.nic();
        self.missed += nic.missed();
        let [interrupts, ..] = nic.counts();
        let state = State {
            model: self.model.name.to_owned(),
            mac: nic.mac(),
            carrier: nic.carrier(),
            mtu: self.mtu,
            sent: counts.sent,
            received: counts.received,
            unsendable: counts.unsendable,
            damaged: counts.damaged,
            missed: self.missed,
            interrupts,
        };
        if self.said.as_ref() != Some(&state) {
            report(&Report::State(state.clone()));
            self.said = Some(state);
        }
    }

    /// Waits until the card or the switch has something, at most for `most`. Asks both to say so,
    /// and looks once more before it sleeps.
    fn sleep(&mut self, most: Duration) -> anyhow::Result<()> {
        self.bridge.nic().listen(self.calls.len())?;
        let waits = self.bridge.nic().has_frames();
        // Frames that found no room wait for room, and the card does not interrupt for them again.
        let interest = if waits { Interest::all() } else { Interest::READ };
        let ready = self.bridge.port().arm(interest).any();
        let moved = self.bridge.turn(BUDGET)?;
        let raised = match ready || moved > 0 {
            true => 0,
            false => self.wait(most)?,
        };
        self.bridge.port().disarm()?;
        if raised != 0 {
            self.bridge.nic().interrupted(raised);
        }
        Ok(())
    }

    /// Sleeps; returns the vectors that were raised, a bit each.
    fn wait(&mut self, most: Duration) -> anyhow::Result<u32> {
        let port = self.bridge.port();
        let mut fds: Vec<_> =
            self.calls.iter().map(|call| PollFd::new(call, PollFlags::IN)).collect();
        fds.push(PollFd::new(&*port, PollFlags::IN));
        match rustix::event::poll(&mut fds, Some(&Timespec::try_from(most)?)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("Waiting failed"),
        }
        let gone = fds.last().is_some_and(|fd| fd.revents().intersects(PollFlags::HUP));
        if gone {
            return Err(PortError::Gone.into());
        }
        let came = |call: &OwnedFd| rustix::io::read(call, &mut [0; 8]).is_ok();
        let raised = self.calls.iter().enumerate();
        Ok(raised.map(|(vector, call)| u32::from(came(call)) << vector).sum())
    }
}
