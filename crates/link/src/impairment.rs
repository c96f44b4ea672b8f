//! The configuration of an impaired link.

use serde::{Deserialize, Serialize};

/// The impairments of one direction of a link. The default has none.
///
/// A generator that starts at `seed` decides about each frame: the same frames in the same order
/// get the same treatment again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Impairment {
    /// Where the random numbers start.
    pub seed: u64,
    /// Lost frames, in parts per million.
    #[cfg_attr(feature = "schemars", schemars(range(max = 1_000_000)))]
    pub loss_ppm: u32,
    /// Frames delivered twice, in parts per million.
    #[cfg_attr(feature = "schemars", schemars(range(max = 1_000_000)))]
    pub duplicate_ppm: u32,
    /// Frames that skip the delay and so overtake others, in parts per million. Needs a delay.
    #[cfg_attr(feature = "schemars", schemars(range(max = 1_000_000)))]
    pub reorder_ppm: u32,
    /// Delay of a frame in microseconds, up to [`MAX_DELAY_US`](Self::MAX_DELAY_US).
    #[cfg_attr(feature = "schemars", schemars(range(max = Impairment::MAX_DELAY_US)))]
    pub delay_us: u32,
    /// The largest variation of the delay, up or down, in microseconds, evenly spread. Frames stay
    /// in order.
    #[cfg_attr(feature = "schemars", schemars(range(max = Impairment::MAX_DELAY_US)))]
    pub jitter_us: u32,
    /// The maximum number of frames in flight in a queue, from 1 to
    /// [`MAX_FRAMES`](Self::MAX_FRAMES). Beyond it, senders to a lossless port wait, and so does
    /// the port itself when it sends. Other frames are dropped.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = Impairment::MAX_FRAMES)))]
    pub limit: u32,
}

/// The reason why an impairment is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImpairmentError {
    /// A share exceeds a million parts.
    #[error("{0} of an impairment is at most 1000000 of a million frames, not {1}")]
    Share(&'static str, u32),
    /// The delay is too long.
    #[error("The delay of an impairment is at most {max} us, not {0}", max = Impairment::MAX_DELAY_US)]
    Delay(u32),
    /// The jitter is longer than the delay.
    #[error("The jitter of an impairment is at most its delay, {delay_us} us, not {jitter_us}")]
    Jitter {
        /// The delay.
        delay_us: u32,
        /// The jitter.
        jitter_us: u32,
    },
    /// Reordering without a delay has no effect.
    #[error("Frames overtake others that are delayed: reorder needs a delay")]
    Reorder,
    /// No frames, or too many.
    #[error("The limit of an impairment is from 1 to {max} frames, not {0}", max = Impairment::MAX_FRAMES)]
    Limit(u32),
}

impl Default for Impairment {
    fn default() -> Self {
        Self {
            seed: 0,
            loss_ppm: 0,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            delay_us: 0,
            jitter_us: 0,
            limit: Self::USUAL_FRAMES,
        }
    }
}

impl Impairment {
    /// All frames, in parts per million.
    pub const ALL: u32 = 1_000_000;
    /// The longest delay, in microseconds: ten seconds.
    pub const MAX_DELAY_US: u32 = 10_000_000;
    /// The highest limit.
    pub const MAX_FRAMES: u32 = 16_384;
    /// The limit by default.
    pub const USUAL_FRAMES: u32 = 1000;

    /// True if frames pass unchanged.
    #[must_use]
    pub fn is_off(&self) -> bool {
        let Self { loss_ppm, duplicate_ppm, delay_us, .. } = *self;
        (loss_ppm, duplicate_ppm, delay_us) == (0, 0, 0)
    }

    /// Checks that the values are in range.
    ///
    /// # Errors
    /// Names the first value that is out of range.
    pub fn check(&self) -> Result<(), ImpairmentError> {
        let Self { delay_us, jitter_us, limit, .. } = *self;
        for (name, ppm) in [
            ("loss", self.loss_ppm),
            ("duplicate", self.duplicate_ppm),
            ("reorder", self.reorder_ppm),
        ] {
            if ppm > Self::ALL {
                return Err(ImpairmentError::Share(name, ppm));
            }
        }
        if delay_us > Self::MAX_DELAY_US {
            return Err(ImpairmentError::Delay(delay_us));
        }
        if jitter_us > delay_us {
            return Err(ImpairmentError::Jitter { delay_us, jitter_us });
        }
        if self.reorder_ppm > 0 && delay_us == 0 {
            return Err(ImpairmentError::Reorder);
        }
        if !(1..=Self::MAX_FRAMES).contains(&limit) {
            return Err(ImpairmentError::Limit(limit));
        }
        Ok(())
    }
}
