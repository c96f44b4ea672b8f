//! The configuration of a link.

use std::sync::Arc;

use port::Nanos;

use crate::Impairment;
use crate::trace::{Bandwidth, Series, TraceError, parse_table};

/// What one direction of a link does to frames. The default does nothing.
///
/// Frames wait in a queue for the line, which takes them one by one at its rate. Behind it they may
/// be lost or changed, and travel for the delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Where the random numbers start. The same frames at the same times have the same fate again.
    pub seed: u64,
    /// Bits a second; `None` for no limit.
    pub rate: Option<u64>,
    /// Bytes of each frame on the wire besides its own, such as 24 for Ethernet's preamble, check
    /// sequence and gap.
    pub overhead: u16,
    /// Delay in nanoseconds, up to [`MAX_DELAY_NS`](Self::MAX_DELAY_NS).
    pub delay_ns: u64,
    /// Variation of the delay in nanoseconds: the largest, if uniform; else the standard deviation.
    /// Frames stay in order.
    pub jitter_ns: u64,
    /// The distribution of the jitter.
    pub spread: Spread,
    /// Which frames are lost.
    pub loss: Loss,
    /// Frames delivered twice, in parts per million.
    pub duplicate_ppm: u32,
    /// Frames that skip the delay and so overtake others, in parts per million.
    pub reorder_ppm: u32,
    /// Frames of which one bit changes, in parts per million.
    pub corrupt_ppm: u32,
    /// The size of the queue; `None` for what rate and delay need, and at least 1,000 frames.
    /// Without a rate, it counts the frames on their way.
    pub queue: Option<QueueSize>,
    /// How the queue chooses the next frame, and which it drops.
    pub aqm: Aqm,
    /// Mark congestion in frames that support ECN, where the discipline would drop them.
    pub ecn: bool,
    /// What makes a flow of `fq_codel`, and the weights of flows.
    pub flows: Flows,
    /// The name of a file with a bandwidth trace, in place of a rate.
    pub trace_file: Option<String>,
    /// The name of a file with a series of delays and losses.
    pub series_file: Option<String>,
    /// The content of the first file.
    pub trace: Option<Arc<Bandwidth>>,
    /// The content of the second file.
    pub series: Option<Arc<Series>>,
    /// The name of a file with a table of a distribution.
    pub spread_file: Option<String>,
}

/// The distribution of delays around their mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// Evenly up to the jitter, up or down.
    #[default]
    Uniform,
    /// The normal distribution, with the jitter as standard deviation.
    Normal,
    /// Quantiles, evenly spaced, in units of 1/8192 of the jitter, as in netem's tables.
    Table(Arc<[i16]>),
}

/// Which frames are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each with this probability, in parts per million.
    Random(u32),
    /// By a model with a good and a bad state, whose probabilities are in parts per million
    /// (Gilbert 1960, Elliott 1963).
    GilbertElliott {
        /// From good to bad, at each frame.
        to_bad: u32,
        /// From bad to good, at each frame.
        to_good: u32,
        /// Loss in the bad state.
        in_bad: u32,
        /// Loss in the good state.
        in_good: u32,
    },
    /// Every frame whose number, from 1, is a multiple of this.
    Every(u32),
}

/// The size of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueSize {
    /// Bytes of frames.
    Bytes(u64),
    /// Frames.
    Frames(u64),
    /// What the line carries in this time, in nanoseconds.
    Time(u64),
}

/// A queue discipline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aqm {
    /// In order; drops the last frame when the queue is full.
    #[default]
    Fifo,
    /// Controlled delay (RFC 8289).
    Codel(Target),
    /// Fair queueing with controlled delay (RFC 8290).
    FqCodel(Target),
    /// Random early detection (Floyd and Jacobson, 1993; gentle).
    Red {
        /// Average queue, in bytes, from which frames are dropped early; 0 for a third of `max`.
        min: u64,
        /// Average queue, in bytes, at which `ppm` of the frames are; 0 for half of the queue.
        max: u64,
        /// In parts per million.
        ppm: u32,
    },
    /// Proportional integral controller, enhanced (RFC 8033).
    Pie(Target),
}

/// The delay that a discipline aims at, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The time in the queue that is accepted.
    pub target_ns: u64,
    /// How long it may be exceeded; for PIE, how often the probability is set.
    pub interval_ns: u64,
}

/// What makes a flow: the fields of frames that are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// The fields; `None` for addresses, protocol and ports.
    pub mask: Option<FlowMask>,
    /// Weights of flows by address; others have weight 1.
    pub weights: Vec<Weight>,
}

/// The fields that make a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowMask {
    /// Leading bits of the source address.
    pub source: u8,
    /// Leading bits of the destination address.
    pub destination: u8,
}

/// The weight of flows from or to an IPv4 or IPv6 prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// The prefix's address.
    pub address: std::net::IpAddr,
    /// Its length in bits.
    pub bits: u8,
    /// The share, relative to 1, from 1 to [`MAX`](Self::MAX).
    pub weight: u32,
}

impl Weight {
    /// The highest weight.
    pub const MAX: u32 = 1000;
}

/// The reason why a link's configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A word that is not known, or whose value is out of range.
    #[error("{0}")]
    Word(String),
    /// Two words contradict each other.
    #[error("{0}")]
    Together(&'static str),
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            rate: None,
            overhead: 0,
            delay_ns: 0,
            jitter_ns: 0,
            spread: Spread::Uniform,
            loss: Loss::None,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            corrupt_ppm: 0,
            queue: None,
            aqm: Aqm::Fifo,
            ecn: false,
            flows: Flows::default(),
            trace_file: None,
            series_file: None,
            trace: None,
            series: None,
            spread_file: None,
        }
    }
}

/// How much a link may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Frames in the queue.
    pub frames: u64,
    /// Bytes of frames in the queue.
    pub bytes: u64,
    /// Bytes of memory of the queue.
    pub queue_memory: u64,
    /// Bytes of memory of the frames on their way.
    pub flight_memory: u64,
}

impl Room {
    /// Bytes of memory in all.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.queue_memory + self.flight_memory
    }
}

impl LinkConfig {
    /// The longest delay, in nanoseconds: ten seconds.
    pub const MAX_DELAY_NS: u64 = 10 * Nanos::SECOND;
    /// The highest rate, in bits a second: 400 Gb/s.
    pub const MAX_RATE: u64 = 400_000_000_000;
    /// The lowest rate, in bits a second.
    pub const MIN_RATE: u64 = 1000;
    /// The longest queue, in bytes of frames.
    pub const MAX_QUEUE: u64 = 1 << 31;
    /// Bytes of memory for what a port sends beyond the size of its queue: the segments of a batch.
    pub const SENT_BEYOND: u64 = 4 << 20;
    /// Bytes of a frame of the usual MTU, for sizes in frames.
    const USUAL_LEN: u64 = 1514;
    /// Bytes of the longest frame, and of all frames of a queue whose size is in frames.
    const LONGEST: u64 = 9238;
    const FRAMES_MOST: u64 = 16 << 20;
    /// Frames of a queue by default, at least.
    const USUAL_FRAMES: u64 = 1000;
    /// The rate, in bits a second, that is assumed for the queue of a link without one.
    const ASSUMED_RATE: u64 = 10_000_000_000;
    /// Bytes of the queue by default, at most, of a link without a rate.
    const ASSUMED_MOST: u64 = 16 << 20;
    /// A frame of 64 bytes takes a quarter more memory than its bytes.
    const fn memory_for(bytes: u64) -> u64 {
        bytes + bytes / 4 + (4 << 16)
    }

    /// The names of the files that the link needs.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let files = [&self.trace_file, &self.series_file, &self.spread_file];
        files.into_iter().filter_map(|file| file.as_deref())
    }

    /// Takes the content of the link's files. `content` gives that of a file by its name.
    ///
    /// # Errors
    /// A file is missing or wrong.
    pub fn read_files(
        &mut self,
        content: impl Fn(&str) -> Option<Arc<str>>,
    ) -> Result<(), LinkError> {
        let of = |file: &str| {
            content(file).ok_or_else(|| LinkError::Word(format!("{file} was not read")))
        };
        let wrong = |file: &str| {
            let file = file.to_owned();
            move |error: TraceError| LinkError::Word(format!("{file}: {error}"))
        };
        if let Some(file) = &self.trace_file {
            self.trace = Some(Arc::new(Bandwidth::parse(&of(file)?).map_err(wrong(file))?));
        }
        if let Some(file) = &self.series_file {
            self.series = Some(Arc::new(Series::parse(&of(file)?).map_err(wrong(file))?));
        }
        if let Some(file) = &self.spread_file {
            self.spread = Spread::Table(parse_table(&of(file)?).map_err(wrong(file))?);
        }
        Ok(())
    }

    /// True if frames pass unchanged.
    #[must_use]
    pub fn is_off(&self) -> bool {
        let Self { seed, queue, overhead, .. } = *self;
        *self == Self { seed, queue, overhead, ..Self::default() }
    }

    /// The mean rate in bits a second, if there is one.
    #[must_use]
    pub fn mean_rate(&self) -> Option<u64> {
        self.trace.as_ref().map(|trace| trace.mean_rate()).or(self.rate)
    }

    /// True if only the rate matters, so that frames can wait where they are.
    #[must_use]
    pub fn is_rate_only(&self) -> bool {
        let Self { seed, rate, overhead, queue, .. } = *self;
        let same = *self == Self { seed, rate, overhead, queue, ..Self::default() };
        rate.is_some() && queue.is_none() && same
    }

    /// The longest time that a frame travels, in nanoseconds.
    fn longest_delay(&self) -> u64 {
        let delay = self.series.as_ref().map_or(self.delay_ns, |series| series.longest());
        let jitter = if self.spread == Spread::Uniform { 1 } else { 4 } * self.jitter_ns;
        (delay + jitter).min(4 * Self::MAX_DELAY_NS)
    }

    /// How much the link may hold.
    #[must_use]
    pub fn room(&self) -> Room {
        let delay = self.longest_delay();
        let carried = |rate: u64, ns: u64| {
            let bytes = u128::from(rate) * u128::from(ns) / (8 * u128::from(Nanos::SECOND));
            u64::try_from(bytes).unwrap_or(u64::MAX).min(Self::MAX_QUEUE)
        };
        let least = Self::USUAL_FRAMES * Self::USUAL_LEN;
        let rate = self.mean_rate();
        let (frames, bytes) = match (self.queue, rate) {
            (Some(QueueSize::Bytes(bytes)), _) => (u64::MAX, bytes),
            (Some(QueueSize::Frames(frames)), _) => (frames, u64::MAX),
            (Some(QueueSize::Time(ns)), rate) => {
                (u64::MAX, carried(rate.unwrap_or(Self::ASSUMED_RATE), ns).max(Self::USUAL_LEN))
            }
            (None, Some(rate)) => (u64::MAX, carried(rate, delay).max(least)),
            (None, None) => {
                let bytes = carried(Self::ASSUMED_RATE, delay).min(Self::ASSUMED_MOST);
                (u64::MAX, bytes.max(least))
            }
        };
        // Frames may be as long as an MTU allows.
        let by_frames = frames.saturating_mul(Self::LONGEST).min(Self::FRAMES_MOST);
        let most = bytes.min(by_frames.max(frames)).min(Self::MAX_QUEUE);
        // A trace may carry more for a while than on average.
        let rate =
            rate.map(|rate| if self.trace.is_some() { rate.saturating_mul(4) } else { rate });
        let flight = rate.map_or(0, |rate| carried(rate, delay));
        Room {
            frames,
            bytes,
            queue_memory: Self::memory_for(most),
            flight_memory: if flight > 0 { Self::memory_for(flight) } else { 0 },
        }
    }

    /// Checks that the values fit each other. Ranges are checked where words are read.
    ///
    /// # Errors
    /// Names the first contradiction.
    pub fn check(&self) -> Result<(), LinkError> {
        let delayed = self.delay_ns > 0 || self.series_file.is_some() || self.series.is_some();
        let timed = self.rate.is_some() || self.trace_file.is_some() || self.trace.is_some();
        let faults = [
            (
                self.jitter_ns > self.delay_ns && self.spread == Spread::Uniform && !delayed,
                "jitter needs a delay",
            ),
            (
                self.jitter_ns > self.delay_ns
                    && self.spread == Spread::Uniform
                    && delayed
                    && self.series_file.is_none()
                    && self.series.is_none(),
                "jitter is at most the delay",
            ),
            (
                self.reorder_ppm > 0 && !delayed,
                "reorder needs a delay: frames overtake delayed ones",
            ),
            (
                self.rate.is_some() && (self.trace_file.is_some() || self.trace.is_some()),
                "a link has a rate or a trace, not both",
            ),
            (self.aqm != Aqm::Fifo && !timed, "aqm needs a rate or a trace: nothing waits without"),
            (self.ecn && self.aqm == Aqm::Fifo, "ecn needs an aqm: a fifo marks nothing"),
            (
                self.flows != Flows::default() && !matches!(self.aqm, Aqm::FqCodel(_)),
                "flows and weight need aqm=fq_codel",
            ),
            (
                (self.delay_ns > 0) && (self.series_file.is_some() || self.series.is_some()),
                "a link has a delay or a series, not both",
            ),
            (
                self.loss != Loss::None && (self.series_file.is_some() || self.series.is_some()),
                "a link has loss or a series, not both",
            ),
        ];
        let first = faults.into_iter().find(|(faulty, _)| *faulty);
        first.map_or(Ok(()), |(_, reason)| Err(LinkError::Together(reason)))
    }
}

impl From<Impairment> for LinkConfig {
    fn from(impairment: Impairment) -> Self {
        let Impairment { seed, loss_ppm, duplicate_ppm, reorder_ppm, .. } = impairment;
        Self {
            seed,
            delay_ns: u64::from(impairment.delay_us) * 1000,
            jitter_ns: u64::from(impairment.jitter_us) * 1000,
            loss: if loss_ppm == 0 { Loss::None } else { Loss::Random(loss_ppm) },
            duplicate_ppm,
            reorder_ppm,
            queue: Some(QueueSize::Frames(impairment.limit.into())),
            ..Self::default()
        }
    }
}
