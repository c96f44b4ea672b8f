//! `toklat cap --drops`: frames that a switch dropped, with the reason.

use std::time::Duration;

use client::name::Name;
use client::{Client, Global};
use frame::bpf::Program;

use super::super::pcap::{Captured, Direction, Output};
use super::super::session::{Session, now};
use super::{CapArgs, since_1970};
use crate::api::{Dropped, DroppedFrame, PortInfo, SwitchInfo};

/// Pause between two requests if there were no drops.
const PAUSE: Duration = Duration::from_millis(20);

/// Captures until the run ends; returns the number of frames.
///
/// # Errors
/// There is no such switch or port, the daemon does not answer, or frames cannot be written.
pub fn capture<'a>(
    args: &CapArgs,
    filter: Option<&Program>,
    global: &Global,
    output: impl FnOnce() -> anyhow::Result<Box<dyn Output + 'a>>,
) -> anyhow::Result<u64> {
    let name: Name = args.port.parse()?;
    let mut client = Client::connect(global)?.without_progress();
    // A missing switch or port is reported before a file is made.
    match &name {
        Name::Switch(switch) => drop(client.get::<SwitchInfo>(&switch.path())?),
        Name::Port(port) => drop(client.get::<PortInfo>(&port.path())?),
    }
    let mut to = output()?;
    let path = format!("{}/drops", name.switch().path());
    let session = Session::start(&args.run)?;
    let mut place = client.get::<Dropped>(&path)?.next;
    if !args.run.quiet {
        eprintln!("capturing what is dropped at {}", args.port);
    }
    let (mut frames, mut missed) = (0, 0);
    let most = args.run.count.unwrap_or(u64::MAX);
    while session.goes_on(now()) && frames < most && !to.is_complete(since_1970()) {
        let dropped: Dropped = client.get(&format!("{path}?since={place}"))?;
        (place, missed) = (dropped.next, missed + dropped.missed);
        for frame in dropped.frames.iter().filter(|frame| is_wanted(args, &name, frame)) {
            let head = bytes(&frame.head);
            if frames < most && filter.is_none_or(|filter| filter.admits(&head[..])) {
                write_frame(&mut *to, (&name, &args.port), dropped.now_ns, (frame, &head))?;
                frames += 1;
            }
        }
        if dropped.frames.is_empty() {
            to.flush()?;
            std::thread::sleep(PAUSE);
        }
    }
    to.flush()?;
    if missed > 0 {
        eprintln!("{missed} more were dropped faster than they could be read");
    }
    Ok(frames)
}

/// Whether a frame matches the port and the direction.
fn is_wanted(args: &CapArgs, name: &Name, frame: &DroppedFrame) -> bool {
    let Name::Port(port) = name else { return true };
    let sent = frame.from == port.port;
    let received = frame.by.as_deref() == Some(&*port.port);
    (sent && !args.rx) || (received && !args.tx)
}

fn write_frame(
    to: &mut dyn Output,
    (name, port): (&Name, &str),
    now_ns: u64,
    (frame, head): (&DroppedFrame, &[u8]),
) -> anyhow::Result<()> {
    let switch = name.switch();
    let by = frame.by.as_ref().map_or(String::new(), |by| format!(" at {switch}:{by}"));
    let comment = format!("dropped: {}{by}, from {switch}:{}", frame.reason, frame.from);
    let ago = Duration::from_nanos(now_ns.saturating_sub(frame.at_ns));
    let received = matches!(name, Name::Port(port) if frame.from != port.port);
    to.frame(&Captured {
        at: since_1970().saturating_sub(ago),
        port,
        direction: if received { Direction::Received } else { Direction::Sent },
        len: frame.len as usize,
        bytes: head,
        comment: Some(&comment),
    })?;
    Ok(())
}

/// Decodes hexadecimal digits, up to the first invalid one.
fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| {
        let [high, low] = [pair[0], pair[1]].map(|digit| char::from(digit).to_digit(16));
        Some((high? << 4 | low?) as u8)
    };
    pairs.map_while(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_is_read_as_far_as_it_goes() {
        assert_eq!(bytes("02ff0A"), [2, 255, 10]);
        assert_eq!(bytes("02zz03"), [2]);
        assert!(bytes("2").is_empty());
    }
}
