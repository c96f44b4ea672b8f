//! KVM, or emulation where KVM is not available.

use std::fs::File;

/// The accelerator that executes a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Accelerator {
    /// The processor, by KVM.
    Kvm,
    /// QEMU's own emulation (TCG): slow, but it needs nothing from the host.
    Tcg,
}

impl Accelerator {
    /// Chooses KVM if this process may use it and the processor runs guests in hardware; else TCG,
    /// and says why.
    #[must_use]
    pub fn choose() -> (Self, Option<String>) {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let device = File::options().read(true).write(true).open("/dev/kvm");
        match obstacle(&cpu, device.err()) {
            None => (Self::Kvm, None),
            why => (Self::Tcg, why),
        }
    }

    /// The accelerator's name for QEMU.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    /// The guest's processor model: with all features of the accelerator.
    #[must_use]
    pub fn cpu(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg => "max",
        }
    }
}

/// The reason why KVM cannot be used.
fn obstacle(cpuinfo: &str, device: Option<std::io::Error>) -> Option<String> {
    if let Some(error) = device {
        let remedy = match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                "; become a member of the group kvm (usermod -aG kvm USER)"
            }
            std::io::ErrorKind::NotFound => {
                "; modprobe kvm_intel or kvm_amd, or turn on nested virtualization"
            }
            _ => "",
        };
        return Some(format!("/dev/kvm: {error}{remedy}"));
    }
    // On some hosts KVM must emulate what the processor lacks. An ordinary guest kernel takes
    // minutes to boot there.
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    let virtualizes = flags.is_none_or(|(_, flags)| {
        flags.split_whitespace().any(|flag| ["vmx", "svm"].contains(&flag))
    });
    (!virtualizes)
        .then(|| "the processor has no virtualization here (neither vmx nor svm)".to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn kvm_needs_its_device_and_a_processor_that_virtualizes() {
        let intel = "processor\t: 0\nflags\t\t: fpu vmx sse\n";
        let none = "processor\t: 0\nflags\t\t: fpu vmx_like sse\n";
        assert_eq!(obstacle(intel, None), None);
        assert_eq!(obstacle("flags : svm", None), None);
        assert!(obstacle(none, None).unwrap().contains("vmx"));
        // Other architectures have no such line.
        assert_eq!(obstacle("CPU part : 0xd0c\n", None), None);
        let denied = obstacle(intel, Some(Error::from(ErrorKind::PermissionDenied))).unwrap();
        assert!(denied.contains("usermod"), "{denied}");
        assert!(obstacle(intel, Some(Error::from(ErrorKind::NotFound))).is_some());
    }
}
