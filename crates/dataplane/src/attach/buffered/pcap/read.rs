//! A recording that is played into the switch.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use ::pcap::file::{Recording, parse};
use jail::strangers::Descriptor;
use port::{IngressCounters, Nanos, Scratch};
use serde::{Deserialize, Serialize};
use shmem::{Bytes, Shared, Span};
use turn::attach::{AttachError, Attached};
use turn::state::{PortState, SendState};

use super::{MAX_FILE, PcapError};
use crate::attach::buffered::{Buffered, Reader};
use crate::attach::{Kind, Place, one};
use crate::log;

/// Nanoseconds between the rounds of a recording that has one frame.
const ROUND_NS: u64 = Nanos::SECOND;

/// Frames from a pcap or pcapng file. Descriptors: the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcapReadConfig {
    /// Start again at the recording's end.
    pub repeat: bool,
    /// Percent of the recorded pace (200: twice as fast); 0 for as fast as possible.
    pub speed_percent: u32,
}

impl Kind for PcapReadConfig {
    fn attach(&self, fds: Vec<Descriptor>, place: Place<'_>) -> Result<Attached, AttachError> {
        let file = one(fds, "a capture file")?.into_ours();
        let recording = parse(&contents(&file)?).map_err(PcapError::from)?;
        let left_out = recording.left_out();
        if !left_out.is_nothing() {
            let (port, frames) = (place.name, recording.len());
            log::write_line(format!("{port}: {frames} frames of a capture; left out: {left_out}"));
        }
        play(recording, self.repeat, self.speed_percent, place.state, place.resume)
    }

    fn has_stranger(&self) -> bool {
        false
    }
}

/// Attaches a pcap or pcapng file and reads all of it before it returns. `speed_percent` scales the
/// recorded pace; 0 is as fast as possible. With `repeat` it starts again at its end. Frames that
/// cannot be sent, and a cut end, are left out; of a port, the log says what and how many.
///
/// A successor (`resume`) continues after the frame that was gathered last.
///
/// # Errors
/// [`AttachError::Part`] when the file cannot be used.
pub fn attach(
    file: &OwnedFd,
    repeat: bool,
    speed_percent: u32,
    state: &PortState,
    resume: bool,
) -> Result<Attached, AttachError> {
    let recording = parse(&contents(file)?).map_err(PcapError::from)?;
    play(recording, repeat, speed_percent, state, resume)
}

/// Like [`attach`], for a recording that is parsed already.
fn play(
    recording: Recording,
    repeat: bool,
    speed_percent: u32,
    state: &PortState,
    resume: bool,
) -> Result<Attached, AttachError> {
    let counters = state.ingress().ok_or(AttachError::Counters)?;
    let position = state.send(0).ok_or(AttachError::Counters)?;
    let next = if resume { position.taken.own() as usize } else { 0 };
    let player = Player::new(recording, repeat, speed_percent, counters, position, next);
    Ok(Attached {
        source: Box::new(Buffered::new([player])),
        egresses: Vec::new(),
        bells: Default::default(),
    })
}

/// Reads the file's bytes. Duplicates of the descriptor share its offset, so that does not move.
fn contents(file: &OwnedFd) -> Result<Vec<u8>, PcapError> {
    let len = super::ordinary(file)?;
    if len > MAX_FILE {
        return Err(PcapError::TooLarge);
    }
    let mut bytes = vec![0; len];
    let mut at = 0;
    while at < len {
        match rustix::io::pread(file, &mut bytes[at..], at as u64) {
            // Another process has truncated the file in the meantime.
            Ok(0) => break,
            Ok(n) => at += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) => return Err(PcapError::File(error.into())),
        }
    }
    bytes.truncate(at);
    Ok(bytes)
}

struct Player {
    frames: Vec<Due>,
    /// The frames' spans point into these bytes, which do not change.
    _bytes: Vec<u8>,
    repeat: bool,
    speed_percent: u32,
    /// The recorded nanoseconds from the last frame to the first one of the next round.
    pause: u64,
    /// The next frame to send.
    next: usize,
    /// A moment, and the recorded time that was due at it. Set when frames are first gathered.
    since: Option<(Nanos, u64)>,
    counters: Shared<IngressCounters>,
    position: Shared<SendState>,
}

/// A frame, and the recorded time at which it is due.
struct Due {
    at: u64,
    bytes: Span,
}

impl Player {
    fn new(
        recording: Recording,
        repeat: bool,
        speed_percent: u32,
        counters: Shared<IngressCounters>,
        position: Shared<SendState>,
        next: usize,
    ) -> Self {
        let duration = recording.duration().as_nanos() as u64;
        let (mut bytes, recorded) = recording.into_parts();
        let gaps = recorded.len().saturating_sub(1) as u64;
        let pause = duration.checked_div(gaps).unwrap_or(ROUND_NS);
        let (mut rest, mut start) = (&mut bytes[..], 0);
        let mut frames = Vec::with_capacity(recorded.len());
        for frame in recorded {
            let (bytes, after) = std::mem::take(&mut rest).split_at_mut(frame.end - start);
            start = frame.end;
            frames.push(Due { at: frame.at, bytes: Bytes::of(bytes).span() });
            rest = after;
        }
        let end = frames.len();
        let next = if repeat && next >= end { 0 } else { next.min(end) };
        Self {
            frames,
            _bytes: bytes,
            repeat,
            speed_percent,
            pause,
            next,
            since: None,
            counters,
            position,
        }
    }

    /// When the next frame is due; `now` for the first frame, and without a pace. `None` at the
    /// end.
    fn due(&self, now: Nanos) -> Option<Nanos> {
        let frame = self.frames.get(self.next)?;
        match self.since {
            Some((start, recorded)) if self.speed_percent != 0 => {
                Some(start + self.scaled(frame.at - recorded))
            }
            _ => Some(now),
        }
    }

    fn scaled(&self, recorded: u64) -> u64 {
        let time = u128::from(recorded) * 100 / u128::from(self.speed_percent.max(1));
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// Advances to the frame after the one that was due at `due`.
    fn advance(&mut self, due: Nanos) {
        self.next += 1;
        if self.next == self.frames.len() && self.repeat {
            self.next = 0;
            self.since = Some((due + self.scaled(self.pause), 0));
        }
    }
}

impl Reader for Player {
    fn read(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        let mut frames = 0;
        while frames < max && scratch.has_room() {
            let Some(due) = self.due(now).filter(|due| *due <= now) else { break };
            if self.since.is_none() {
                self.since = Some((now, self.frames[self.next].at));
            }
            scratch.push(self.frames[self.next].bytes);
            self.advance(due);
            frames += 1;
        }
        if frames > 0 {
            self.position.taken.publish(self.next as u32);
            self.counters.frames.add(frames as u64);
            self.counters.bytes.add(scratch.bytes());
        }
        frames
    }

    fn has_frames(&mut self) -> bool {
        let begun = self.since.is_some() && self.speed_percent != 0;
        self.next < self.frames.len() && !begun
    }

    fn deadline(&self, now: Nanos) -> Option<Nanos> {
        self.due(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SwitchConfig;
    use ::pcap::file::{begin_packet, end_packet, interface, section};
    use std::time::Duration;
    use turn::attach::Source;
    use turn::state::State;

    /// A player of frames that were captured at these microseconds.
    fn player(at: &[u64], repeat: bool, speed_percent: u32) -> (State, Box<dyn Source>) {
        let mut file = Vec::new();
        section(&mut file);
        interface(&mut file, None, 0);
        for at in at {
            let start = begin_packet(&mut file, 0, Duration::from_micros(*at), 60, 60);
            file.extend([*at as u8; 60]);
            end_packet(&mut file, start);
        }
        let config = SwitchConfig { max_ports: 1, ..SwitchConfig::default() };
        let state = State::private(&config).unwrap();
        let port = state.port(0).unwrap();
        let attached = play(parse(&file).unwrap(), repeat, speed_percent, &port, false).unwrap();
        (state, attached.source)
    }

    fn gathered(source: &mut dyn Source, now: u64) -> usize {
        let mut scratch = Scratch::new(8);
        source.queue(0).unwrap().gather(&mut scratch, 8, Nanos(now))
    }

    #[test]
    fn frames_come_at_the_recorded_pace() {
        for (speed, factor) in [(100, 1000), (200, 500), (10, 10_000)] {
            let (_state, mut source) = player(&[5, 5, 6, 9], false, speed);
            assert!(source.arm(Nanos(0)), "the first frame is due at once");
            let start = 1_000_000;
            assert_eq!(gathered(&mut *source, start), 2);
            assert!(!source.arm(Nanos(0)));
            assert_eq!(source.deadline(Nanos(0)), Some(Nanos(start + factor)));
            assert_eq!(gathered(&mut *source, start + factor - 1), 0);
            assert_eq!(gathered(&mut *source, start + factor), 1);
            assert_eq!(source.deadline(Nanos(0)), Some(Nanos(start + 4 * factor)));
            assert_eq!(gathered(&mut *source, start + 100 * factor), 1, "late is not lost");
            assert_eq!((source.deadline(Nanos(0)), source.arm(Nanos(0))), (None, false), "the end");
            assert_eq!(gathered(&mut *source, u64::MAX), 0);
        }
    }

    #[test]
    fn rounds_follow_each_other_at_the_mean_distance() {
        let (_state, mut source) = player(&[0, 1, 4], true, 100);
        let times: Vec<u64> = (0..16).filter(|us| gathered(&mut *source, us * 1000) > 0).collect();
        assert_eq!(times, [0, 1, 4, 6, 7, 10, 12, 13]);
        let (_state, mut source) = player(&[3], true, 100);
        assert_eq!(gathered(&mut *source, 7), 1);
        assert_eq!(source.deadline(Nanos(0)), Some(Nanos(7 + ROUND_NS)));
    }

    #[test]
    fn without_a_pace_all_is_due_at_once() {
        let (_state, mut source) = player(&[0, 1_000_000], false, 0);
        assert_eq!(gathered(&mut *source, 0), 2);
        assert!(!source.arm(Nanos(0)));
        let (_state, mut source) = player(&[0, 1_000_000], true, 0);
        assert_eq!((gathered(&mut *source, 0), gathered(&mut *source, 0)), (8, 8));
        assert!(source.arm(Nanos(0)), "there is always work");
    }

    #[test]
    fn a_successor_goes_on_after_the_last_frame() {
        let (state, mut source) = player(&[0, 0, 0, 9], false, 100);
        assert_eq!(gathered(&mut *source, 0), 3);
        assert_eq!(state.port(0).unwrap().send(0).unwrap().taken.own(), 3);
    }
}
