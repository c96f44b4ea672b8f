//! `toklat run`: runs a program with netmap's interface.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use self::elf::Linking;
use client::{Global, Result};
use host::library::{self, LIBRARY};

mod elf;
mod netns;

/// The environment variable that tells the library which ports to show as interfaces.
const PORTS: &str = "TOKLAT_PORTS";
/// The environment variable that stands for `dev.netmap.fwd`.
const FORWARD: &str = "TOKLAT_NETMAP_FWD";

/// Options of `toklat run`.
#[derive(Debug, clap::Args)]
pub struct RunProgramArgs {
    /// A port that the program sees as an interface, with its address there (repeatable); programs
    /// that list interfaces or routes find it
    #[arg(long = "port", value_name = "PORT[=ADDRESS/BITS]", value_parser = parse_port)]
    ports: Vec<String>,
    /// Run the program in a network namespace of its own, with a tap such as vale0.p1 for each
    /// --port. For programs that load no libraries, and for those that use sockets (ping, curl),
    /// which are this host's otherwise; needs no privileges
    #[arg(long)]
    netns: bool,
    /// Pass on what the program does not take from an interface: each frame that it releases goes
    /// to the host behind the interface, or from there to the wire, as with dev.netmap.fwd=1
    #[arg(long, conflicts_with = "netns")]
    forward: bool,
    /// The program and its arguments, after `--`: toklat run -- pkt-gen -i vale0:1 -f tx
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// Checks `vale0:p1=10.0.0.1/24`.
fn parse_port(text: &str) -> std::result::Result<String, String> {
    let (name, address) = text.split_once('=').map_or((text, None), |(n, a)| (n, Some(a)));
    let is_name = name.split_once(':').is_some_and(|(s, p)| !s.is_empty() && !p.is_empty());
    if !is_name || name.contains(',') {
        return Err(format!("`{name}` is not a port; write switch:port, such as vale0:p1"));
    }
    let is_address = |address: &str| {
        let (address, bits) = address.split_once('/').unwrap_or((address, "32"));
        address.parse::<Ipv4Addr>().is_ok() && bits.parse::<u32>().is_ok_and(|bits| bits <= 32)
    };
    match address {
        Some(address) if !is_address(address) => {
            Err(format!("`{address}` is not an address; write it with its network: 10.0.0.1/24"))
        }
        _ => Ok(text.to_owned()),
    }
}

/// Replaces this process by the program.
///
/// # Errors
/// There is no daemon, no library or no such program, or no library can be loaded into the program.
pub fn run(args: &RunProgramArgs, global: &Global) -> Result {
    let [name, arguments @ ..] = &args.program[..] else { bail!("No program was named") };
    let directory = global.dir();
    find_daemon(&directory)?;
    if args.netns {
        return netns::run(name, arguments, &args.ports, &directory);
    }
    let library = library::find()?;
    let program = find_program(name)?;
    check_program(&program)?;
    if let Some(note) = note_of_host(&program, &args.ports) {
        eprintln!("toklat: {note}");
    }
    let mut preload = library.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(&program);
    if args.forward {
        command.env(FORWARD, "1");
    }
    let error = command
        .arg0(name)
        .args(arguments)
        .env(PORTS, args.ports.join(","))
        .env("LD_PRELOAD", preload)
        .env("TOKLAT_DIR", directory)
        .exec();
    Err(error).with_context(|| format!("Cannot run {}", program.display()))
}

/// Programs that use the system's own sockets, and none of netmap's or packet sockets.
const OF_SOCKETS: [&str; 18] = [
    "ping",
    "ping6",
    "curl",
    "wget",
    "ssh",
    "scp",
    "nc",
    "ncat",
    "netcat",
    "socat",
    "telnet",
    "dig",
    "host",
    "nslookup",
    "iperf",
    "iperf3",
    "traceroute",
    "tracepath",
];

/// A warning for programs that would use the host's network, although a switch was meant.
fn note_of_host(program: &Path, ports: &[String]) -> Option<String> {
    let name = program.file_name()?.to_str()?;
    if !OF_SOCKETS.contains(&name) {
        return None;
    }
    let port = ports.first().map_or("vale0:x=10.0.0.9/24", String::as_str);
    Some(format!(
        "{name} uses sockets, so it talks by this host's network; to have it on a switch: toklat \
         run --netns --port {port} -- {name} ..."
    ))
}

/// Checks that a daemon answers. Without one, the program would report that there is no netmap.
fn find_daemon(directory: &Path) -> Result {
    let socket = directory.join(netring::attach::SOCKET);
    let connect = || {
        let kind = SocketType::SEQPACKET;
        let fd = rustix::net::socket(AddressFamily::UNIX, kind, None)?;
        rustix::net::connect(&fd, &SocketAddrUnix::new(&socket)?)?;
        Ok(UnixStream::from(fd))
    };
    match connect() {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
            Err(netring::OpenError::Denied { socket: socket.clone() }.into())
        }
        Err(source) => Err(netring::OpenError::NoDaemon { socket: socket.clone(), source }.into()),
    }
}

/// Finds the file that a shell would run for this name.
fn find_program(name: &OsStr) -> Result<PathBuf> {
    let runs = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let path = PathBuf::from(name);
    if path.components().count() > 1 || name.as_encoded_bytes().contains(&b'/') {
        let found = runs(&path).then(|| path.clone());
        return found.with_context(|| format!("{} is not a program", path.display()));
    }
    let places = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&places).map(|place| place.join(name)).find(runs);
    found.with_context(|| format!("There is no program {} in PATH", path.display()))
}

/// Checks that a library can be loaded into the program.
fn check_program(path: &Path) -> Result {
    let file = File::open(path).with_context(|| format!("Cannot read {}", path.display()))?;
    let what = path.display();
    if is_privileged(&file.metadata()?) {
        bail!(
            "{what} runs with the rights of its owner (setuid, setgid), and the system loads no \
             library into such a program; run it with `toklat run --netns`, or as the user that it \
             needs: `sudo toklat run -- ...`"
        );
    }
    match elf::linking(&file) {
        Linking::Static => bail!(
            "{what} is linked statically, so no library can be loaded into it; run it with \
             `toklat run --netns`, or build it with shared libraries"
        ),
        Linking::OtherMachine => {
            bail!("{what} is for another kind of machine than toklat itself; build it for this one")
        }
        Linking::Musl => bail!(
            "{what} is made for musl's C library, and {LIBRARY} for glibc's; run it with \
             `toklat run --netns`, or build it with glibc"
        ),
        Linking::Dynamic | Linking::NoElf => Ok(()),
    }
}

/// Returns true for a program that gets privileges its user does not have (set-user-ID or
/// set-group-ID).
fn is_privileged(file: &Metadata) -> bool {
    let mode = file.permissions().mode();
    let user = mode & 0o4000 != 0 && file.uid() != rustix::process::geteuid().as_raw();
    let group = mode & 0o2010 == 0o2010 && file.gid() != rustix::process::getegid().as_raw();
    user || group
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_hosts_network_are_told_of() {
        let note = |program: &str, ports: &[&str]| {
            let ports: Vec<_> = ports.iter().map(|port| (*port).to_owned()).collect();
            note_of_host(Path::new(program), &ports)
        };
        let said = note("/usr/bin/ping", &[]).unwrap();
        assert!(said.contains("this host's network") && said.contains("--netns --port"), "{said}");
        let said = note("/usr/bin/curl", &["vale0:p=10.0.0.1/24"]).unwrap();
        assert!(said.contains("--port vale0:p=10.0.0.1/24 -- curl"), "{said}");
        for other in ["/usr/bin/tcpdump", "/usr/bin/pkt-gen", "/usr/bin/python3"] {
            assert_eq!(note(other, &[]), None, "{other}");
        }
    }
}
