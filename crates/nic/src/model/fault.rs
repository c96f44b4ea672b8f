//! Driver errors: each fault's number, name and sentence in one place.

/// Makes a family's enum of faults. State memory holds a fault's number, and
/// [`crate::device::Device::fault`] gives its sentence.
macro_rules! faults {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $fault:ident = $number:literal, $sentence:literal;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
        #[non_exhaustive]
        #[repr(u32)]
        pub enum $name {
            $($(#[$doc])* #[error($sentence)] $fault = $number,)*
        }

        impl $name {
            /// The largest number.
            #[allow(dead_code, reason = "not every family takes states over")]
            pub(crate) const LAST: u32 = [$($number),*].len() as u32;

            /// The fault with this number.
            #[must_use]
            pub const fn of(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$fault),)*
                    _ => None,
                }
            }

            /// A sentence that describes the fault.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(Self::$fault => $sentence,)*
                }
            }
        }
    };
}

pub(crate) use faults;

#[cfg(test)]
mod tests {
    faults! {
        /// Two.
        Fault {
            /// One.
            First = 1, "the first happened";
            /// The other.
            Second = 2, "the second happened";
        }
    }

    #[test]
    fn numbers_names_and_sentences_belong_together() {
        assert_eq!(
            [0, 1, 2, 3].map(Fault::of),
            [None, Some(Fault::First), Some(Fault::Second), None]
        );
        assert_eq!((Fault::LAST, Fault::Second.sentence()), (2, "the second happened"));
        assert_eq!(Fault::First.to_string(), Fault::First.sentence());
    }
}
