//! Boot loaders that were not made for our NICs, on every card.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};

use harness::guests::{PATIENCE, can_emulate};
use harness::namespace::Namespace;
use harness::passt::{Passt, SERVER, serve, world};
use harness::{Daemon, skip};

/// Debian's iPXE, as a kernel.
const IPXE: &str = "/boot/ipxe.lkrn";

/// Answers `/boot` with a script that requests the next file. Sends the requested paths to `asked`.
fn serve_boot_files(world: &Namespace, asked: Sender<String>) {
    serve(world, 80, move |mut stream| {
        let (mut request, mut piece) = (Vec::new(), [0; 1024]);
        while !request.windows(4).any(|four| four == b"\r\n\r\n") {
            let Ok(got @ 1..) = stream.read(&mut piece) else { return };
            request.extend(&piece[..got]);
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let body = match path.as_str() {
            // The file is long enough for more than one segment.
            "/boot" => format!(
                "#!ipxe\n{}imgfetch http://{SERVER}/fetched-by-${{net0/mac:hexhyp}}\n",
                "# a comment\n".repeat(500)
            ),
            _ => String::new(),
        };
        let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let _ = stream.write_all((head + &body).as_bytes());
        let _ = asked.send(path);
        // The guest closes the connection.
        let _ = stream.read(&mut piece);
    });
}

/// Objective: a boot loader that knows nothing of us gets an address and boots over every card.
///
/// Steps: passt, and a server that has a script; Debian's iPXE asks for an address by DHCP, fetches
/// the script by HTTP, and runs it, which asks for another file.
fn boot_over(nic: &str, test: &str) {
    if !can_emulate(test) {
        return;
    }
    if !Path::new(IPXE).is_file() {
        return skip(test, "iPXE is missing (Debian: ipxe)");
    }
    let world = match world() {
        Ok(world) => world,
        Err(why) => return skip(test, why),
    };
    let (asked, ask) = channel();
    serve_boot_files(&world, asked);
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let socket = dir.path().join("up.sock");
    let _passt = Passt::start(&world, &socket);
    let mut daemon = Daemon::start();
    daemon.apply(&format!(
        "[switch.vale0.port.up]\nkind = {{ stream = {{ address = '{}', client = true }} }}",
        socket.display()
    ));
    daemon.wait_for("passt", |d| d.get("/v1/switches/vale0/ports/up")["state"] == "attached");
    let mut vm = Command::new(env!("CARGO_BIN_EXE_toklat"));
    vm.env("TOKLAT_DIR", daemon.dir()).stdin(Stdio::null());
    vm.args(["vm", "run", "--switch", "vale0", "--nic", nic, "--memory", "256"]);
    vm.args(["--mac", "02:00:00:00:00:77", "--kernel", IPXE]);
    let dhcp = ["dhcp net0"; 5].join(" || ");
    let commands = format!("{dhcp} ; chain http://{SERVER}/boot");
    // The serial line also gets what the firmware writes to the screen.
    vm.args(["--append", &commands, "--", "-machine", "graphics=off"]);
    let log = dir.path().join("screen");
    vm.stdout(File::create(&log).unwrap()).stderr(File::options().append(true).open(&log).unwrap());
    let mut vm = vm.spawn().unwrap();
    let said = || {
        let screen = String::from_utf8_lossy(&std::fs::read(&log).unwrap()).into_owned();
        format!("{nic}: {screen}; {}", daemon.log())
    };
    for expected in ["/boot", "/fetched-by-02-00-00-00-00-77"] {
        let path = ask.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{}", said()));
        assert_eq!(path, expected, "{}", said());
    }
    // QEMU's watcher ends QEMU.
    vm.kill().unwrap();
    vm.wait().unwrap();
}

#[test]
fn ipxe_boots_by_dhcp_and_http_over_virtio() {
    boot_over("virtio", "ipxe_boots_by_dhcp_and_http_over_virtio");
}

#[test]
fn ipxe_boots_by_dhcp_and_http_over_an_82540em() {
    boot_over("82540em", "ipxe_boots_by_dhcp_and_http_over_an_82540em");
}

#[test]
fn ipxe_boots_by_dhcp_and_http_over_an_82574l() {
    boot_over("82574l", "ipxe_boots_by_dhcp_and_http_over_an_82574l");
}

#[test]
fn ipxe_boots_by_dhcp_and_http_over_an_am79c970a() {
    boot_over("am79c970a", "ipxe_boots_by_dhcp_and_http_over_an_am79c970a");
}

#[test]
fn ipxe_boots_by_dhcp_and_http_over_an_am79c973() {
    boot_over("am79c973", "ipxe_boots_by_dhcp_and_http_over_an_am79c973");
}
