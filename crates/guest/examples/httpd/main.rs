//! A web server on a port of a switch: the files of a directory, read into memory at the start.
//!
//!     toklat daemon &
//!     cargo run --release -p toklat-guest --example httpd vale0:web 10.0.0.2/24 DIRECTORY
//!
//! Or confined, with the program that cargo built: `toklat guest run PROGRAM vale0:web
//! 10.0.0.2/24`. Without a directory it serves pages of 1, 4, 16, 64 KiB and 1 MiB: `/1k`, `/4k`,
//! `/16k`, `/64k`, `/1m`, and `/`.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use guest::apps::site::Site;
use guest::{Bytes, Guest, Host};

/// Adds all files in a directory and below it.
fn read(site: &mut Site, directory: &Path, prefix: &str) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let path = format!("{prefix}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            read(site, &entry.path(), &path)?;
            continue;
        }
        let body = Bytes::from(std::fs::read(entry.path())?);
        if let Some(folder) = path.strip_suffix("index.html") {
            site.add(folder, body.clone());
        }
        site.add(&path, body);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::from_env()?;
    let mut site = Site::default();
    let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    site.tell_time(time.saturating_sub(guest::now().0 / guest::Nanos::SECOND));
    match host.args().first() {
        Some(directory) => read(&mut site, Path::new(directory), "")?,
        None => {
            site.add("/", Bytes::from_static(b"<h1>It works, without a kernel's sockets.</h1>\n"));
            for (path, len) in [("/1k", 1), ("/4k", 4), ("/16k", 16), ("/64k", 64), ("/1m", 1024)] {
                site.add(path, vec![b'x'; len << 10].into());
            }
        }
    }
    Ok(host.run(|stack| {
        for address in stack.addresses() {
            println!("http://{}/", SocketAddr::new(address, 80));
        }
        let mut guest = Guest::new(stack, site.clone());
        guest.listen(80, 1024)?;
        Ok(guest.run(|_| false)?)
    })?)
}
