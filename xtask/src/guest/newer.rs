//! The test guest with a kernel of the next release, in `target/guest/newer`: its kernel, and the
//! same initramfs. A second archive behind the initramfs has that kernel's drivers.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::cpio::Archive;
use super::{KERNEL, MODULES, is_made, modules, uncompressed, unpacked};
use crate::debian::{self, Apt, find};

/// Its directory.
pub const NAME: &str = "newer";
/// Debian 13, whose kernel is 6.12.
const SUITES: &[&str] = &["trixie"];
const PACKAGE: &str = "linux-image-amd64";
/// Of what that depends on, the kernel itself.
const DEPENDENCIES: [&str; 1] = ["linux-image-"];

/// Makes it for the guest in `target`, which was made by `guest`, unless it is there.
pub fn make(target: &Path, guest: &str) -> Result<()> {
    let dir = target.join(NAME);
    let recipe = [guest, include_str!("newer.rs")].concat();
    if is_made(&dir, &recipe) {
        println!("the test guest with a newer kernel is there: {}", dir.display());
        return Ok(());
    }
    debian::tools(&["apt-get", "dpkg-deb"])?;
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    let root = unpacked(&dir, &fetch(&dir)?)?;
    let kernel = find(&root.join("boot"), KERNEL)?;
    let release = kernel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let release = release.trim_start_matches(KERNEL);
    ensure!(is_newer(release), "the release has only {release}");
    let compressed = fs::read(&kernel)?;
    fs::write(dir.join("kernel"), uncompressed(&compressed).unwrap_or(compressed))?;
    // The kernel unpacks archives that follow each other: these files take the place of the others.
    let initramfs = [fs::read(target.join("initramfs"))?, drivers(&root)?].concat();
    fs::write(dir.join("initramfs"), initramfs)?;
    fs::remove_dir_all(&root)?;
    for used in ["apt", "packages"] {
        fs::remove_dir_all(dir.join(used))?;
    }
    fs::write(dir.join("recipe"), recipe)?;
    println!("the test guest with Linux {release} is made: {}", dir.display());
    Ok(())
}

fn fetch(dir: &Path) -> Result<Vec<PathBuf>> {
    let packages = dir.join("packages");
    fs::create_dir_all(&packages)?;
    debian::fetch(&Apt::of(dir.join("apt"), SUITES), &packages, &[PACKAGE], &DEPENDENCIES)
}

fn drivers(root: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    let mut order = String::new();
    for (name, module) in modules(root, &MODULES)? {
        archive.file(&format!("lib/modules/{name}"), &module);
        order += &format!("{name}\n");
    }
    archive.file("lib/modules/order", order.as_bytes());
    Ok(archive.finish())
}

/// True from 6.12 on.
fn is_newer(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version| version >= (6, 12))
}

#[cfg(test)]
mod tests {
    use super::is_newer;

    #[test]
    fn releases_are_compared_by_number() {
        assert!(is_newer("6.12.57+deb13-amd64") && is_newer("7.3.0-amd64"));
        assert!(!is_newer("6.1.0-40-amd64") && !is_newer("amd64"));
    }
}
