//! `toklat bridge`: passes frames between two ports, both ways.

use anyhow::Context;
use netring::layout::MAX_FRAGS;
use netring::{Interest, Port, Region, RegionConfig};

use crate::session::{Idler, Meter, OpenArgs, RunArgs, Session, Totals, Volume, now};
use client::Global;

/// Options of `toklat bridge`.
#[derive(Clone, Debug, clap::Args)]
pub struct BridgeArgs {
    /// One port, such as vale0:up
    a: String,
    /// The other port, such as vale1:up
    b: String,
    /// Copy frames even if buffers could be exchanged
    #[arg(long)]
    copy: bool,
    /// Maximum frames passed at a time
    #[arg(short, long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    burst: u16,
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    run: RunArgs,
}

/// Slots of each ring.
const SLOTS: u32 = netring::layout::SLOTS;

/// Runs `toklat bridge`.
///
/// # Errors
/// If a port cannot be opened or fails.
pub fn run(args: &BridgeArgs, global: &Global) -> anyhow::Result<()> {
    let mut ports = open_both(args, global)?;
    let session = Session::start(&args.run)?;
    let totals = pass(args, &mut ports, &session)?;
    let [there, back] = &totals;
    global.print_done(&totals, &format!("into {there}\ninto {back}"))
}

/// Opens both ports, in one region unless frames are to be copied.
fn open_both(args: &BridgeArgs, global: &Global) -> anyhow::Result<[Port; 2]> {
    let region = if args.copy {
        None
    } else {
        let config = RegionConfig::ports(2, 1, SLOTS);
        Some(Region::create(config).context("Cannot make a region for both ports")?)
    };
    let open = |name: &str| {
        let open = netring::Open::new(name).slots(SLOTS);
        args.open.open(
            match &region {
                Some(region) => open.in_region(region),
                None => open,
            },
            name,
            global,
        )
    };
    Ok([open(&args.a)?, open(&args.b)?])
}

/// Forwards up to `max` frames, as far as there is room, and without a copy if both ports share a
/// region. The caller flushes both.
#[inline]
pub fn forward(from: &mut Port, to: &mut Port, max: usize) -> Volume {
    let mut volume = Volume::default();
    let mut out = to.send(max + MAX_FRAGS);
    // A frame is taken only when there is room for a frame of any length, so none is lost here.
    let mut frames = from.receive(max);
    while out.room() >= MAX_FRAGS
        && let Some(frame) = frames.next()
    {
        let bytes = frame.len() as u64;
        if out.forward(frame).is_ok() {
            volume += Volume { frames: 1, bytes };
        }
    }
    volume
}

fn pass(
    args: &BridgeArgs,
    ports: &mut [Port; 2],
    session: &Session,
) -> anyhow::Result<[Totals; 2]> {
    let mut idler = Idler::new(args.run.idle);
    let mut at = now();
    let mut meters = [Meter::new(at, args.run.quiet), Meter::new(at, args.run.quiet)];
    let left = |meters: &[Meter; 2]| {
        let passed: u64 = meters.iter().map(|meter| meter.total.frames).sum();
        args.run.count.map_or(u64::MAX, |count| count.saturating_sub(passed))
    };
    while session.goes_on(at) && left(&meters) > 0 {
        let max = usize::try_from(left(&meters)).unwrap_or(usize::MAX).min(args.burst.into());
        let [a, b] = &mut *ports;
        let volumes = [forward(a, b, max), forward(b, a, max)];
        a.flush()?;
        b.flush()?;
        for ((meter, volume), name) in meters.iter_mut().zip(volumes).zip(["a -> b", "b -> a"]) {
            meter.add(volume, at);
            meter.tick(at, name, String::new);
        }
        if volumes.iter().any(|volume| volume.frames > 0) {
            idler.worked();
        } else {
            rest(&mut idler, ports, at)?;
        }
        at = now();
    }
    let [there, back] = &meters;
    Ok([there.totals(ports[1].name()), back.totals(ports[0].name())])
}

/// Sleeps until a frame arrives, or until there is room for frames that wait.
fn rest(idler: &mut Idler, ports: &mut [Port; 2], at: u64) -> anyhow::Result<()> {
    let blocked = ports.iter_mut().any(|port| port.ready().readable);
    let interest = if blocked { Interest::WRITE } else { Interest::READ };
    idler.idle(at, u64::MAX).take_all(ports, interest)
}
