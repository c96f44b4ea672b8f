//! The test guest with DPDK, in `target/guest/dpdk`: the same kernel and initramfs, behind which
//! there is a second archive with testpmd, the driver of the e1000 family, and the kernel's modules
//! that hand a card to programs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::cpio::Archive;
use super::{LOADER, apt, first, is_made, modules, unpacked};
use crate::debian::{self, find};
use crate::tool::command;

/// The directory of DPDK here, and that of its drivers in the guest.
pub const NAME: &str = "dpdk";
/// The package with testpmd. Its libraries name what they depend on, among that drivers that
/// testpmd has commands for.
const PACKAGE: &str = "dpdk-dev";
/// Packages that those depend on are taken if their names begin like this.
const DEPENDENCIES: [&str; 4] = ["lib", "ibverbs-providers", "zlib1g", "linux-image-"];
/// The kernel that the test guest has.
const KERNEL: &str = "linux-image-amd64";
/// DPDK's own drivers that testpmd is to load: of the cards, and of the memory that frames are in.
const DRIVERS: [&str; 2] = ["librte_net_e1000.so.", "librte_mempool_ring.so."];
const TESTPMD: &str = include_str!("../../guest/testpmd");

/// Makes it for the guest in `target`, which was made by `guest`, unless it is there.
pub fn make(target: &Path, guest: &str) -> Result<()> {
    let dir = target.join(NAME);
    let recipe = [guest, TESTPMD, include_str!("dpdk.rs")].concat();
    if is_made(&dir, &recipe) {
        println!("the test guest with DPDK is there: {}", dir.display());
        return Ok(());
    }
    debian::tools(&["apt-get", "dpkg-deb"])?;
    let root = unpacked(target, &fetch(target)?)?;
    let archive = archive(&root)?;
    fs::remove_dir_all(root)?;
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    std::os::unix::fs::symlink("../kernel", dir.join("kernel"))?;
    // The kernel unpacks archives that follow each other.
    let initramfs = [fs::read(target.join("initramfs"))?, archive].concat();
    fs::write(dir.join("initramfs"), initramfs)?;
    fs::write(dir.join("recipe"), recipe)?;
    println!("the test guest with DPDK is made: {}", dir.display());
    Ok(())
}

fn fetch(target: &Path) -> Result<Vec<PathBuf>> {
    let (apt, packages) = (apt(target), target.join("packages"));
    let mut fetched = debian::fetch(&apt, &packages, &[PACKAGE, KERNEL], &DEPENDENCIES)?;
    let ethdev = find(&packages, "librte-ethdev")?;
    let driver = format!("librte-net-e1000-{}", version(&ethdev)?);
    fetched.extend(debian::fetch(&apt, &packages, &[&driver], &DEPENDENCIES)?);
    fetched.sort();
    fetched.dedup();
    Ok(fetched)
}

/// The version of DPDK's binary interface, which its packages have in their names: 23 of
/// `librte-ethdev23_22.11.deb`.
fn version(package: &Path) -> Result<String> {
    let name = package.file_name().unwrap_or_default().to_string_lossy();
    let name = name.split('_').next().unwrap_or_default();
    let version = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    ensure!(!version.is_empty(), "{name} is of no version");
    Ok(version.to_owned())
}

fn archive(root: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    let testpmd = first(root, &["usr/bin/dpdk-testpmd"])?;
    let drivers = drivers(&root.join("usr/lib/x86_64-linux-gnu/dpdk"))?;
    archive.file("bin/testpmd", TESTPMD.as_bytes());
    archive.file("bin/dpdk-testpmd", &fs::read(&testpmd)?);
    archive.directory(&format!("lib/{NAME}"));
    for driver in &drivers {
        // Programs load files that end in `.so`.
        let name = driver.file_stem().unwrap_or_default().to_string_lossy();
        archive.file(&format!("lib/{NAME}/{name}"), &fs::read(driver)?);
    }
    let mut libraries = Vec::new();
    for object in drivers.iter().chain([&testpmd]) {
        libraries.extend(needed(root, object)?);
    }
    libraries.sort();
    libraries.dedup();
    for library in libraries {
        let name = library.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&format!("lib/{name}"), &fs::read(&library)?);
    }
    for (name, module) in modules(root, &["uio_pci_generic"])? {
        archive.file(&format!("lib/modules/{name}"), &module);
    }
    Ok(archive.finish())
}

/// Files such as `pmds-23.0/librte_net_e1000.so.23`, but not the `librte_net_e1000.so.23.0` behind
/// it.
fn drivers(dir: &Path) -> Result<Vec<PathBuf>> {
    let dir = find(dir, "pmds-")?;
    let version = dir.to_string_lossy();
    let version = version.rsplit('-').next().and_then(|version| version.split('.').next());
    let version = version.unwrap_or_default();
    DRIVERS.iter().map(|name| first(&dir, &[&format!("{name}{version}")])).collect()
}

/// The libraries that a program or a library is linked with, and those that they are: the packages
/// have many more.
fn needed(root: &Path, object: &Path) -> Result<Vec<PathBuf>> {
    let dirs = ["lib", "usr/lib"].map(|lib| root.join(lib).join("x86_64-linux-gnu"));
    let loader = dirs.iter().map(|dir| dir.join(LOADER)).find(|loader| loader.is_file());
    let loader = loader.context("the packages have no dynamic loader")?;
    // As if the tree were the whole machine: libraries that are installed here count for nothing.
    let mut list = command(&loader.to_string_lossy(), &["--inhibit-cache", "--library-path"]);
    let said = list.arg(std::env::join_paths(&dirs)?).arg("--list").arg(object).output()?;
    ensure!(said.status.success(), "{} {}", loader.display(), said.status);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let mut libraries = Vec::new();
    for (name, place) in said.lines().filter_map(|line| line.split_once(" => ")) {
        let path = PathBuf::from(place.split(" (0x").next().unwrap_or_default());
        ensure!(path.starts_with(root), "{} is in none of the packages", name.trim());
        // The loader is there, in a directory of its own.
        if !path.ends_with(LOADER) {
            libraries.push(path);
        }
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::version;
    use std::path::Path;

    #[test]
    fn the_version_of_the_interface_is_in_names_of_packages() {
        let path = Path::new("/p/librte-ethdev23_22.11.11-0+deb12u1_amd64.deb");
        assert_eq!(version(path).unwrap(), "23");
        assert!(version(Path::new("/p/librte_1_amd64.deb")).is_err());
    }
}
