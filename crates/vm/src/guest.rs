//! Where the test guest is: a Debian kernel and an initramfs, made by `cargo xtask setup`.

use std::path::{Path, PathBuf};

use super::Boot;

/// The environment variable that names the directory, if it is not the default.
pub const VARIABLE: &str = "TOKLAT_GUEST";

/// The test guest was not found.
#[derive(Debug, thiserror::Error)]
#[error(
    "The test guest is missing (neither target/guest nor $TOKLAT_GUEST has it); make it: cargo xtask guest"
)]
pub struct Missing;

/// Commands that cannot be put on the kernel's command line.
#[derive(Debug, thiserror::Error)]
#[error(
    "The test guest's commands have to fit the kernel's command line: no double quotes, and at most {LONGEST} bytes"
)]
pub struct BadGuestCommand;

/// The kernel cuts off its command line after 2,048 bytes.
const LONGEST: usize = 1800;

/// Commands of a guest that serves forever: iperf3, and then UDP echoes at port 7.
pub const SERVE: &str = "iperf3 -s -D >/dev/null; until grep -q :1451 /proc/net/tcp*; do sleep 0.1; done; \
    pkt echo 7 & while :; do sleep 1; done";

/// Commands that wait until the guest at `address` serves, and print that.
#[must_use]
pub fn reach(address: &str) -> String {
    format!(
        "until pkt ask {address} 7 64 1 >/dev/null 2>&1; do sleep 0.2; done; echo toklat-guest: reached"
    )
}

/// Finds the guest's directory: `$TOKLAT_GUEST`, else `guest` in this program's build directory,
/// else `target/guest` here.
///
/// # Errors
/// [`Missing`].
pub fn find() -> Result<PathBuf, Missing> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    named.into_iter().chain(super::made_by_setup("guest")).find(|dir| is_guest(dir)).ok_or(Missing)
}

/// Returns true if the guest in `dir` has the driver `guest-driver/linux`: `cargo xtask setup` may
/// not have been able to build it.
#[must_use]
pub fn has_driver(dir: &Path) -> bool {
    dir.join("toklat_e1000.ko").is_file()
}

/// The directory of the same guest with DPDK, if `cargo xtask setup` could make it beside the one
/// in `dir`. Its `testpmd` takes the card of `eth0` from the kernel.
#[must_use]
pub fn with_dpdk(dir: &Path) -> Option<PathBuf> {
    Some(dir.join("dpdk")).filter(|dir| is_guest(dir))
}

/// The directory of the same guest with the kernel of Debian's next release, 6.12 or newer, if
/// `cargo xtask setup` could make it beside the one in `dir`.
#[must_use]
pub fn with_newer_kernel(dir: &Path) -> Option<PathBuf> {
    Some(dir.join("newer")).filter(|dir| is_guest(dir))
}

fn is_guest(dir: &Path) -> bool {
    dir.join("kernel").is_file() && dir.join("initramfs").is_file()
}

/// Says how to boot the guest: with an address for its NIC, such as `10.0.0.1/24`, and with shell
/// commands. It powers off after them. Without commands it runs a shell on the console.
///
/// # Errors
/// [`BadGuestCommand`].
pub fn boot(
    dir: &Path,
    address: Option<&str>,
    commands: Option<&str>,
) -> Result<Boot, BadGuestCommand> {
    boot_with(dir, address, None, commands)
}

/// Works as [`boot`], with more words for the kernel and `xtask/guest/init`. `toklat.driver=toklat`
/// uses the driver `guest-driver/linux` for NICs with a status block. `MODULE.NAME=VALUE` sets a
/// module's parameter.
///
/// # Errors
/// [`BadGuestCommand`].
pub fn boot_with(
    dir: &Path,
    address: Option<&str>,
    words: Option<&str>,
    commands: Option<&str>,
) -> Result<Boot, BadGuestCommand> {
    let said = [address, words, commands].into_iter().flatten();
    if said.clone().any(|text| text.contains(['"', '\n']))
        || said.map(str::len).sum::<usize>() > LONGEST
    {
        return Err(BadGuestCommand);
    }
    // A panic reboots, and QEMU exits on reboot. On a busy host the guest's timer may seem broken.
    let mut append = "console=ttyS0 quiet panic=-1 no_timer_check".to_owned();
    if let Some(address) = address {
        append += &format!(" toklat.address={address}");
    }
    if let Some(words) = words {
        append += &format!(" {words}");
    }
    if let Some(commands) = commands {
        append += &format!(" -- run \"{commands}\"");
    }
    Ok(Boot::Kernel { kernel: dir.join("kernel"), initrd: Some(dir.join("initramfs")), append })
}

/// Converts QEMU's exit status to the guest's: the debug exit device sends it as `(64 + status) * 2
/// + 1`.
#[must_use]
pub fn status(qemu: i32) -> Option<u8> {
    let status = (qemu - 1) / 2 - 64;
    (qemu % 2 == 1).then(|| u8::try_from(status).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_behind_the_kernel_s_own_words() {
        let boot =
            boot(Path::new("/g"), Some("10.0.0.1/24"), Some("ping -c 1 10.0.0.2; ls")).unwrap();
        let Boot::Kernel { append, .. } = boot else { panic!("{boot:?}") };
        assert!(
            append.ends_with(" toklat.address=10.0.0.1/24 -- run \"ping -c 1 10.0.0.2; ls\""),
            "{append}"
        );
    }

    #[test]
    fn words_for_the_kernel_come_before_the_commands() {
        let words = "toklat.driver=toklat e1000.InterruptThrottleRate=0";
        let boot = boot_with(Path::new("/g"), None, Some(words), Some("true")).unwrap();
        let Boot::Kernel { append, .. } = boot else { panic!("{boot:?}") };
        assert!(append.ends_with(&format!("{words} -- run \"true\"")), "{append}");
    }

    #[test]
    fn what_the_kernel_would_misread_is_refused() {
        let long = "x".repeat(2000);
        for commands in ["echo \"a\"", "a\nb", &long] {
            assert!(boot(Path::new("/g"), None, Some(commands)).is_err(), "{commands}");
        }
    }

    #[test]
    fn the_guest_s_status_is_told_from_qemu_s() {
        assert_eq!(
            [0, 1, 129, 131, 135, 253].map(status),
            [None, None, Some(0), Some(1), Some(3), Some(62)]
        );
    }
}
