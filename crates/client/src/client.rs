//! The control API's client: HTTP/1.1 with JSON over the daemon's Unix socket.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::ApiError;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Runtime};

use crate::Global;
use crate::stream::{Stream, collect};

/// The reason why a request failed: the daemon could not be reached, or it refused.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens on the control socket.
    #[error("The daemon is not running (no process listens on {}); start it: {start}", socket.display())]
    NotRunning {
        /// The control socket.
        socket: PathBuf,
        /// The command that starts the daemon.
        start: String,
    },
    /// This user may not connect to the control socket.
    #[error(
        "Not allowed to use {}; become a member of the group that it belongs to (usermod -aG \
         toklat-admin USER; to read only, toklat-view; then log in again), or run this as root",
        socket.display()
    )]
    Denied {
        /// The control socket.
        socket: PathBuf,
    },
    /// The socket cannot be used for another reason.
    #[error("Cannot use {}", socket.display())]
    Socket {
        /// The control socket.
        socket: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The connection closed before the reply.
    #[error("The daemon closed the connection before it answered; see its log (toklat logs)")]
    Lost(#[from] hyper::Error),
    /// The daemon refused the request.
    #[error(transparent)]
    Refused(#[from] ApiError),
    /// The reply is not one of this API.
    #[error("The daemon's answer is not understood; is it of this version? (toklat status)")]
    Answer(#[from] serde_json::Error),
}

/// A connection to the daemon. It carries one request at a time.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    sender: SendRequest<String>,
    progress: bool,
}

impl Client {
    /// Connects to the daemon of the runtime directory: where it is controlled or, if this user may
    /// not, where it is read.
    ///
    /// # Errors
    /// [`ClientError::NotRunning`], [`ClientError::Denied`] or [`ClientError::Socket`].
    pub fn connect(global: &Global) -> Result<Self, ClientError> {
        let socket = global.dir().join(api::SOCKET);
        let failed = |error| connect_error(global, &socket, error);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let connected =
            |name| runtime.block_on(tokio::net::UnixStream::connect(global.dir().join(name)));
        let stream = match connected(api::SOCKET) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                connected(api::VIEW_SOCKET).map_err(|_| failed(error))?
            }
            stream => stream.map_err(failed)?,
        };
        let (sender, connection) = runtime.block_on(handshake(Stream(stream)))?;
        // The connection's task reports its end to the request that waits for a reply.
        runtime.spawn(async { drop(connection.await) });
        Ok(Self { runtime, sender, progress: std::io::stderr().is_terminal() })
    }

    /// Suppresses the message that the client waits: for callers that own the terminal.
    #[must_use]
    pub fn without_progress(mut self) -> Self {
        self.progress = false;
        self
    }

    /// Sends a GET request and reads the reply.
    ///
    /// # Errors
    /// If the daemon refuses or goes away.
    pub fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ClientError> {
        let text = self.request(Method::GET, path, String::new())?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Sends a request with a body and reads the reply.
    ///
    /// # Errors
    /// If the daemon refuses or goes away.
    pub fn send<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let text = self.request(method, path, serde_json::to_string(body)?)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Sends a request whose reply has no body.
    ///
    /// # Errors
    /// If the daemon refuses or goes away.
    pub fn submit(
        &mut self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<(), ClientError> {
        self.request(method, path, serde_json::to_string(body)?).map(drop)
    }

    /// Sends a DELETE request.
    ///
    /// # Errors
    /// If the daemon refuses or goes away.
    pub fn delete(&mut self, path: &str) -> Result<(), ClientError> {
        self.request(Method::DELETE, path, String::new()).map(drop)
    }

    fn request(
        &mut self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Vec<u8>, ClientError> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|_| {
            ApiError::new(
                api::ErrorCode::BadRequest,
                format!("{path} is not a path of the control API"),
                "use names of letters, digits, '-', '_' and '.'",
            )
        })?;
        let headers = request.headers_mut();
        headers.insert("host", hyper::header::HeaderValue::from_static("toklat"));
        headers.insert("content-type", hyper::header::HeaderValue::from_static("application/json"));
        let sender = &mut self.sender;
        let exchange = async {
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            Ok::<_, hyper::Error>((status, collect(answer.into_body()).await?))
        };
        let (status, body) = if self.progress {
            self.runtime.block_on(with_progress(exchange))?
        } else {
            self.runtime.block_on(exchange)?
        };
        if status.is_success() { Ok(body) } else { Err(refusal(status, &body)) }
    }
}

/// The daemon's reason and remedy. If something else replied, describes that reply.
fn refusal(status: StatusCode, body: &[u8]) -> ClientError {
    match serde_json::from_slice::<ApiError>(body) {
        Ok(error) => error.into(),
        Err(_) => ApiError::new(
            api::ErrorCode::System,
            format!("The daemon answered with HTTP status {status}"),
            "is it of this version? (toklat status)",
        )
        .into(),
    }
}

fn connect_error(global: &Global, socket: &Path, error: std::io::Error) -> ClientError {
    use std::io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
    let socket = socket.to_owned();
    match error.kind() {
        NotFound | ConnectionRefused => {
            ClientError::NotRunning { socket, start: start_command(global) }
        }
        PermissionDenied => ClientError::Denied { socket },
        _ => ClientError::Socket { socket, source: error },
    }
}

/// How to start a daemon in this runtime directory, or the directory where one runs.
fn start_command(global: &Global) -> String {
    let system = Path::new("/run/toklat");
    let dir = global.dir();
    let units = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
    let installed = units.iter().any(|dir| Path::new(dir).join("toklat.service").exists());
    if dir == system && installed {
        return "systemctl start toklat".into();
    }
    let start = if dir == api::runtime_directory() {
        "toklat daemon".into()
    } else {
        format!("toklat --dir {} daemon", dir.display())
    };
    if system.join(api::SOCKET).exists() {
        format!("{start}; or use the system's: export TOKLAT_DIR={}", system.display())
    } else {
        start
    }
}

/// Waits for `work`. After a second, prints each second on stderr that it still waits.
async fn with_progress<T>(work: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let mut work = std::pin::pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(Duration::from_secs(1), work.as_mut()).await {
            if started.elapsed() >= Duration::from_secs(1) {
                eprint!("\r\x1b[K");
            }
            return done;
        }
        eprint!("\r\x1b[Kwaiting for the daemon, {} s", started.elapsed().as_secs());
        let _ = std::io::stderr().flush();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Starts a daemon that replies to one request with these bytes; returns the request it got.
    fn one_answer(dir: &Path, answer: &'static str) -> std::thread::JoinHandle<String> {
        let listener = UnixListener::bind(dir.join(api::SOCKET)).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut asked, mut length) = (String::new(), 0);
            loop {
                let start = asked.len();
                reader.read_line(&mut asked).unwrap();
                let line = asked[start..].trim_end();
                if let Some(value) = line.strip_prefix("content-length: ") {
                    length = value.parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            asked.push_str(std::str::from_utf8(&body).unwrap());
            stream.write_all(answer.as_bytes()).unwrap();
            asked
        })
    }

    fn at(dir: &Path) -> Global {
        Global { dir: Some(dir.to_owned()), json: false }
    }

    #[test]
    fn a_body_goes_out_and_an_answer_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let daemon =
            one_answer(dir.path(), "HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{\"changes\":[]}");
        let daemon_answer = Client::connect(&at(dir.path())).unwrap().send::<api::Applied>(
            Method::PUT,
            "/v1/topology",
            &api::Topology::default(),
        );
        // The body has 13 of the 14 bytes: a truncated reply is an error, not a panic.
        assert!(matches!(daemon_answer, Err(ClientError::Answer(_))), "{daemon_answer:?}");
        let asked = daemon.join().unwrap();
        assert!(asked.starts_with("PUT /v1/topology HTTP/1.1\r\n"), "{asked}");
        assert!(asked.ends_with("{\"switch\":{}}"), "{asked}");
    }

    #[test]
    fn refusals_carry_reason_and_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = one_answer(
            dir.path(),
            "HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n\
             {\"error\":\"not_found\",\"reason\":\"No switch vale7\",\"remedy\":\"add it\"}",
        );
        let error = Client::connect(&at(dir.path())).unwrap().delete("/v1/switches/vale7");
        assert_eq!(error.unwrap_err().to_string(), "No switch vale7; add it");
        daemon.join().unwrap();
    }

    #[test]
    fn foreign_answers_and_lost_connections_are_errors() {
        for answer in
            ["HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\n\r\nhmm", "SSH-2.0-x\r\n", ""]
        {
            let dir = tempfile::tempdir().unwrap();
            let daemon = one_answer(dir.path(), answer);
            let error = Client::connect(&at(dir.path())).unwrap().get::<api::Status>("/v1/status");
            assert!(error.is_err(), "{answer:?}");
            daemon.join().unwrap();
        }
    }

    #[test]
    fn without_a_daemon_the_error_says_how_to_start_it() {
        let dir = tempfile::tempdir().unwrap();
        let error = Client::connect(&at(dir.path())).unwrap_err();
        assert!(matches!(error, ClientError::NotRunning { .. }));
        let start = format!("toklat --dir {} daemon", dir.path().display());
        assert!(error.to_string().contains(&start), "{error}");
    }

    /// A client of ports and a client of the API find the same daemon. Runs itself again, with
    /// other variables.
    #[test]
    fn the_usual_directory_is_that_of_clients_of_ports() {
        if let Some(is) = std::env::var_os("TOKLAT_TEST_DIRECTORY") {
            assert_eq!(api::runtime_directory(), Path::new(&is));
            return assert_eq!(api::runtime_directory(), netring::attach::runtime_directory());
        }
        let name = "client::tests::the_usual_directory_is_that_of_clients_of_ports";
        let home = "/home/of/user";
        for (dir, of_user, is) in [
            ("", "", "/home/of/user/.toklat"),
            ("/a", "/b", "/a"),
            ("", "/b", "/b/toklat"),
            ("/a", "", "/a"),
        ] {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let root = std::fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t");
            let is_system = root || Path::new("/run/toklat/attach.sock").exists();
            let own = dir.is_empty() && of_user.is_empty();
            let is = if own && is_system { "/run/toklat" } else { is };
            again.args(["--exact", name]).env("TOKLAT_TEST_DIRECTORY", is).env("HOME", home);
            let ended = again.env("TOKLAT_DIR", dir).env("XDG_RUNTIME_DIR", of_user).output();
            assert!(ended.unwrap().status.success(), "{dir:?}, {of_user:?}: {is}");
        }
    }
}
