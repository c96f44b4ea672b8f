//! Requests whose answers RFC 9110 and 9112 fix, as one table: to the web server, and to nginx.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use guest::apps::site::Site;
use guest::{App, Bytes, Guest, Io};

mod world;

use harness::{Running, skip, wait_for};
use world::{CLIENT, SERVER, World};

/// A client that sends its text in pieces, and does not end its stream.
#[derive(Default)]
struct Client {
    pieces: std::vec::IntoIter<Bytes>,
    came: Vec<u8>,
    /// The server has ended its stream.
    ended: bool,
}

impl App for Client {
    type Conn = ();
    fn accepted(&mut self, _: &mut Io<'_>) {}
    fn connected(&mut self, _: &mut (), io: &mut Io<'_>) {
        self.drained(&mut (), io);
    }
    fn drained(&mut self, _: &mut (), io: &mut Io<'_>) {
        self.pieces.next().into_iter().for_each(|piece| io.send(piece));
    }
    fn data(&mut self, _: &mut (), _: &mut Io<'_>, data: &[u8]) -> usize {
        self.came.extend(data);
        data.len()
    }
    fn ended(&mut self, _: &mut (), io: &mut Io<'_>) {
        self.ended = true;
        io.close();
    }
}

/// Sends a text to a site, in pieces of these lengths in turn. Returns what it answers, and whether
/// it ends the stream. Time is virtual, so the answers have come when both hosts are silent.
fn converse(site: &mut Site, text: &[u8], cuts: &[usize]) -> (Vec<u8>, bool) {
    let (mut pieces, mut rest) = (Vec::new(), text);
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() {
        let cut = cuts.next().map_or(rest.len(), |cut| (cut + 1).min(rest.len()));
        pieces.push(Bytes::copy_from_slice(&rest[..cut]));
        rest = &rest[cut..];
    }
    let mut world = World::new();
    let mut server = Guest::new(world.host(SERVER, None), site.clone());
    server.listen(80, 8).unwrap();
    let client = Client { pieces: pieces.into_iter(), ..Client::default() };
    let mut client = Guest::new(world.host(CLIENT, None), client);
    client.connect(std::net::SocketAddr::from((SERVER, 80)), (), world.now).unwrap();
    let (mut silent, mut heard) = (0, 0);
    while silent < 1000 && !client.app().ended {
        client.poll(world.now).unwrap();
        world.turn();
        server.poll(world.now).unwrap();
        world.turn();
        let frames = server.stack().counters().frames_in + client.stack().counters().frames_in;
        silent = if frames == heard { silent + 1 } else { 0 };
        heard = frames;
    }
    let came = std::mem::take(&mut client.app().came);
    (came, client.app().ended)
}

/// What stands for a document of 1024 bytes.
const PAGE: usize = 1024;
const H: &str = "Host: a\r\n";

/// A name; a request, with `{H}` for a host and `{tag}` for the page's entity tag; the statuses and
/// lengths of the answers (`-` for any); whether the connection goes on; whether nginx differs.
type Row = (&'static str, &'static str, &'static str, bool, bool);

const OPEN: bool = true;
const CLOSED: bool = false;
const NGINX: bool = false;
const NOT_NGINX: bool = true;

const ROWS: &[Row] = &[
    ("a request", "GET /1k HTTP/1.1\r\n{H}\r\n", "200 1024", OPEN, NGINX),
    ("of 1.0", "GET /1k HTTP/1.0\r\n\r\n", "200 1024", CLOSED, NGINX),
    ("of 1.0, kept", "GET /1k HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "200 1024", OPEN, NGINX),
    (
        "of 1.0, kept in a list",
        "GET /1k HTTP/1.0\r\nConnection: TE, Keep-Alive\r\n\r\n",
        "200 1024",
        OPEN,
        NGINX,
    ),
    ("of 1.0, missing", "GET /no HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "404 -", OPEN, NGINX),
    ("close", "GET /1k HTTP/1.1\r\n{H}Connection: close\r\n\r\n", "200 1024", CLOSED, NGINX),
    (
        "close in a list",
        "GET /1k HTTP/1.1\r\n{H}Connection: TE, Close\r\n\r\n",
        "200 1024",
        CLOSED,
        NGINX,
    ),
    (
        "keep-alive and close",
        "GET /1k HTTP/1.1\r\n{H}Connection: keep-alive, close\r\n\r\n",
        "200 1024",
        CLOSED,
        NGINX,
    ),
    (
        "close, then another field",
        "GET /1k HTTP/1.1\r\n{H}Connection: close\r\nConnection: TE\r\n\r\n",
        "200 1024",
        CLOSED,
        NGINX,
    ),
    (
        "a name that ends so",
        "GET /1k HTTP/1.1\r\n{H}Connection: not-close\r\n\r\n",
        "200 1024",
        OPEN,
        NOT_NGINX,
    ),
    ("absolute form", "GET http://a/1k HTTP/1.1\r\n{H}\r\n", "200 1024", OPEN, NGINX),
    (
        "absolute form, upper case",
        "GET HTTP://a:80/1k?x HTTP/1.1\r\n{H}\r\n",
        "200 1024",
        OPEN,
        NGINX,
    ),
    ("absolute form, no path", "GET http://a HTTP/1.1\r\n{H}\r\n", "200 -", OPEN, NGINX),
    ("absolute form, no host", "GET http:///1k HTTP/1.1\r\n{H}\r\n", "400 -", OPEN, NOT_NGINX),
    ("no path at all", "GET 1k HTTP/1.1\r\n{H}\r\n", "400 -", OPEN, NOT_NGINX),
    ("an escape", "GET /%31%6B HTTP/1.1\r\n{H}\r\n", "200 1024", OPEN, NGINX),
    ("a broken escape", "GET /%3 HTTP/1.1\r\n{H}\r\n", "400 -", OPEN, NOT_NGINX),
    ("an escape that is no text", "GET /%FF HTTP/1.1\r\n{H}\r\n", "404 -", OPEN, NGINX),
    ("a query", "GET /1k?a=%31 HTTP/1.1\r\n{H}\r\n", "200 1024", OPEN, NGINX),
    ("HEAD", "HEAD /1k HTTP/1.1\r\n{H}\r\n", "200 0", OPEN, NGINX),
    ("HEAD of nothing", "HEAD /no HTTP/1.1\r\n{H}\r\n", "404 0", OPEN, NGINX),
    ("no Host", "GET /1k HTTP/1.1\r\n\r\n", "400 -", CLOSED, NGINX),
    ("two Hosts", "GET /1k HTTP/1.1\r\n{H}{H}\r\n", "400 -", CLOSED, NGINX),
    ("an impossible Host", "GET /1k HTTP/1.1\r\nHost: a/b\r\n\r\n", "400 -", CLOSED, NGINX),
    ("an empty line before", "\r\nGET /1k HTTP/1.1\r\n{H}\r\n", "200 1024", OPEN, NGINX),
    ("bare line feeds", "GET /1k HTTP/1.1\nHost: a\n\n", "200 1024", OPEN, NGINX),
    (
        "two in a row",
        "GET /no HTTP/1.1\r\n{H}\r\nGET /1k HTTP/1.1\r\n{H}\r\n",
        "404 - 200 1024",
        OPEN,
        NGINX,
    ),
    (
        "a body of no bytes",
        "GET /1k HTTP/1.1\r\n{H}Content-Length: 0\r\n\r\n",
        "200 1024",
        OPEN,
        NGINX,
    ),
    (
        "a small body",
        "GET /1k HTTP/1.1\r\n{H}Content-Length: 5\r\n\r\nhello",
        "200 1024",
        OPEN,
        NGINX,
    ),
    (
        "a small body that is a request",
        "POST /1k HTTP/1.1\r\n{H}Content-Length: 18\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "405 -",
        OPEN,
        NGINX,
    ),
    (
        "a body, then a request",
        "POST /1k HTTP/1.1\r\n{H}Content-Length: 2\r\n\r\nhiGET /1k HTTP/1.1\r\n{H}\r\n",
        "405 - 200 1024",
        OPEN,
        NGINX,
    ),
    (
        "a body of chunks",
        "POST /1k HTTP/1.1\r\n{H}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "411 -",
        CLOSED,
        NOT_NGINX,
    ),
    (
        "a length in two forms",
        "GET /1k HTTP/1.1\r\n{H}Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
        "400 -",
        CLOSED,
        NGINX,
    ),
    (
        "a length that is none",
        "GET /1k HTTP/1.1\r\n{H}Content-Length: +5\r\n\r\n",
        "400 -",
        CLOSED,
        NGINX,
    ),
    (
        "a length in a list",
        "GET /1k HTTP/1.1\r\n{H}Content-Length: 5, 6\r\n\r\n",
        "400 -",
        CLOSED,
        NGINX,
    ),
    (
        "a body that is too long",
        "POST /1k HTTP/1.1\r\n{H}Content-Length: 99999999\r\n\r\n",
        "413 -",
        CLOSED,
        NGINX,
    ),
    (
        "a client that waits for leave",
        "POST /1k HTTP/1.1\r\n{H}Content-Length: 10\r\nExpect: 100-continue\r\n\r\n",
        "405 -",
        CLOSED,
        NOT_NGINX,
    ),
    ("a method that is not there", "DELETE /1k HTTP/1.1\r\n{H}\r\n", "405 -", OPEN, NGINX),
    ("a method that is unknown", "BREW /1k HTTP/1.1\r\n{H}\r\n", "501 -", OPEN, NOT_NGINX),
    ("OPTIONS", "OPTIONS * HTTP/1.1\r\n{H}\r\n", "204 0", OPEN, NOT_NGINX),
    ("a later version", "GET /1k HTTP/1.2\r\n{H}\r\n", "200 1024", OPEN, NGINX),
    (
        "a later version in pieces",
        "\r\nGET /1k HTTP/1.9\n{H}\r\nGET /no HTTP/1.1\r\n{H}\r\n",
        "200 1024 404 -",
        OPEN,
        NGINX,
    ),
    ("version 2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505 -", CLOSED, NOT_NGINX),
    ("a folded field", "GET /1k HTTP/1.1\r\n{H}X: b\r\n c\r\n\r\n", "400 -", CLOSED, NOT_NGINX),
    ("a space before the colon", "GET /1k HTTP/1.1\r\nHost : a\r\n\r\n", "400 -", CLOSED, NGINX),
    (
        "an upgrade",
        "GET /1k HTTP/1.1\r\n{H}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n\r\n",
        "200 1024",
        OPEN,
        NGINX,
    ),
    ("a range", "GET /1k HTTP/1.1\r\n{H}Range: bytes=0-9\r\n\r\n", "206 10", OPEN, NGINX),
    ("a range's end", "GET /1k HTTP/1.1\r\n{H}Range: bytes=-24\r\n\r\n", "206 24", OPEN, NGINX),
    (
        "a unit in upper case",
        "GET /1k HTTP/1.1\r\n{H}Range: BYTES=0-9\r\n\r\n",
        "206 10",
        OPEN,
        NGINX,
    ),
    (
        "another unit",
        "GET /1k HTTP/1.1\r\n{H}Range: lines=0-9\r\n\r\n",
        "200 1024",
        OPEN,
        NOT_NGINX,
    ),
    (
        "a range behind the end",
        "GET /1k HTTP/1.1\r\n{H}Range: bytes=5000-\r\n\r\n",
        "416 -",
        OPEN,
        NGINX,
    ),
    (
        "HEAD of a range",
        "HEAD /1k HTTP/1.1\r\n{H}Range: bytes=0-9\r\n\r\n",
        "200 0",
        OPEN,
        NOT_NGINX,
    ),
    (
        "If-Range, the same",
        "GET /1k HTTP/1.1\r\n{H}Range: bytes=10-\r\nIf-Range: {tag}\r\n\r\n",
        "206 1014",
        OPEN,
        NGINX,
    ),
    (
        "If-Range, another",
        "GET /1k HTTP/1.1\r\n{H}Range: bytes=10-\r\nIf-Range: \"x\"\r\n\r\n",
        "200 1024",
        OPEN,
        NGINX,
    ),
    (
        "If-Range, weak",
        "GET /1k HTTP/1.1\r\n{H}Range: bytes=10-\r\nIf-Range: W/{tag}\r\n\r\n",
        "200 1024",
        OPEN,
        NGINX,
    ),
    (
        "If-Range, an old date",
        "GET /1k HTTP/1.1\r\n{H}Range: bytes=10-\r\nIf-Range: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n",
        "200 1024",
        OPEN,
        NGINX,
    ),
    (
        "If-Match, the same",
        "GET /1k HTTP/1.1\r\n{H}If-Match: \"x\", {tag}\r\n\r\n",
        "200 1024",
        OPEN,
        NGINX,
    ),
    ("If-Match, any", "GET /1k HTTP/1.1\r\n{H}If-Match: *\r\n\r\n", "200 1024", OPEN, NGINX),
    (
        "If-Match, another",
        "GET /1k HTTP/1.1\r\n{H}If-Match: \"x\"\r\n\r\n",
        "412 -",
        OPEN,
        NOT_NGINX,
    ),
    (
        "If-Match, weak",
        "GET /1k HTTP/1.1\r\n{H}If-Match: W/{tag}\r\n\r\n",
        "412 -",
        OPEN,
        NOT_NGINX,
    ),
    (
        "If-None-Match, the same",
        "GET /1k HTTP/1.1\r\n{H}If-None-Match: \"x\", W/{tag}\r\n\r\n",
        "304 0",
        OPEN,
        NGINX,
    ),
    (
        "If-None-Match, another",
        "GET /1k HTTP/1.1\r\n{H}If-None-Match: \"x\"\r\n\r\n",
        "200 1024",
        OPEN,
        NGINX,
    ),
    (
        "If-None-Match of nothing",
        "GET /no HTTP/1.1\r\n{H}If-None-Match: *\r\n\r\n",
        "404 -",
        OPEN,
        NGINX,
    ),
];

/// An answer: its status, its fields, and its body.
struct Answer {
    status: String,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Takes answers apart. `request` says which of them have no body.
fn answers(mut bytes: &[u8], request: &str) -> Vec<Answer> {
    let mut answers = Vec::new();
    while let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        bytes = &bytes[end + 4..];
        let (line, fields) = head.split_once("\r\n").unwrap_or((&head, ""));
        let field = |line: &str| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        };
        assert!(line.starts_with("HTTP/1.1 "), "{line}");
        let status = line[9..12].to_owned();
        let answer = Answer { status, fields: fields.lines().map(field).collect(), body: vec![] };
        let none = request.starts_with("HEAD") || ["204", "304"].contains(&&answer.status[..]);
        let len = answer.field("content-length").map_or(0, |len| len.parse().unwrap());
        let body = &bytes[..if none { 0 } else { len }];
        bytes = &bytes[body.len()..];
        answers.push(Answer { body: body.to_vec(), ..answer });
    }
    assert!(bytes.is_empty(), "{}", String::from_utf8_lossy(bytes));
    answers
}

/// Checks what a server has sent to a request, and whether it has ended the stream.
fn check(row: &Row, request: &str, bytes: &[u8], ended: bool, who: &str) -> Vec<Answer> {
    let (name, _, wanted, open, _) = *row;
    let came = answers(bytes, request.trim_start());
    let told: Vec<_> =
        came.iter().map(|answer| format!("{} {}", answer.status, answer.body.len())).collect();
    let told = told.join(" ");
    let words = wanted.split(' ').zip(told.split(' '));
    let same = words.clone().all(|(wanted, told)| wanted == "-" || wanted == told);
    let count = wanted.split(' ').count() == told.split(' ').count();
    assert!(same && count, "{who}: {name}: {told} for {wanted}");
    assert_eq!(ended, !open, "{who}: {name}: the connection's end");
    if who == "nginx" {
        return came;
    }
    for answer in &came {
        let last = came.last().is_some_and(|last| std::ptr::eq(last, answer));
        let closes = answer.field("connection") == Some("close");
        assert_eq!(closes, last && ended, "{name}: it says whether it closes");
        let date = answer.field("date").expect("a date");
        assert!(date.starts_with("Tue, 14 Nov 2023 22:13:2") && date.ends_with(" GMT"), "{date}");
        let failed = answer.status.starts_with(['4', '5']);
        assert!(!failed || answer.field("content-length") != Some("0"), "{name}: a small body");
        assert_eq!(answer.status == "405", failed && answer.field("allow").is_some(), "{name}");
        let has_length = answer.field("content-length").is_some();
        assert_eq!(has_length, !["204", "304"].contains(&&answer.status[..]), "{name}");
    }
    came
}

fn filled(row: &Row, tag: &str) -> String {
    row.1.replace("{H}", H).replace("{tag}", tag)
}

fn site() -> Site {
    let mut site = Site::default();
    site.tell_time(1_700_000_000);
    site.add("/", "<h1>hello</h1>".into());
    site.add("/1k", vec![b'x'; PAGE].into());
    site
}

#[test]
fn requests_are_answered_as_the_rfcs_say() {
    let get = format!("GET /1k HTTP/1.1\r\n{H}\r\n");
    let (bytes, _) = converse(&mut site(), get.as_bytes(), &[]);
    let tag = answers(&bytes, &get)[0].field("etag").unwrap().to_owned();
    for row in ROWS {
        let request = filled(row, &tag);
        let mut before = None;
        // The answers do not depend on where the stream is cut.
        for cuts in [&[][..], &[0], &[6, 1]] {
            let (bytes, ended) = converse(&mut site(), request.as_bytes(), cuts);
            check(row, &request, &bytes, ended, "site");
            assert_eq!(*before.get_or_insert_with(|| bytes.clone()), bytes, "{}", row.0);
        }
    }
    let kept = "GET /1k HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    let (bytes, _) = converse(&mut site(), kept.as_bytes(), &[]);
    assert_eq!(answers(&bytes, kept)[0].field("connection"), Some("keep-alive"));
    let (bytes, _) = converse(&mut Site::default(), b"GET / HTTP/1.0\r\n\r\n", &[]);
    assert_eq!(answers(&bytes, "")[0].field("date"), None, "without a clock there is no date");
}

#[test]
fn nginx_answers_as_the_table_says() {
    let test = "nginx_answers_as_the_table_says";
    if Command::new("nginx").arg("-v").output().is_err() {
        return skip(test, "nginx is missing (nginx-light)");
    }
    let dir = tempfile::tempdir().unwrap();
    let (path, socket) = (dir.path().display(), dir.path().join("socket"));
    std::fs::write(dir.path().join("1k"), [b'x'; PAGE]).unwrap();
    std::fs::write(dir.path().join("index.html"), "<h1>hello</h1>").unwrap();
    let settings = format!(
        "daemon off; master_process off; error_log stderr; pid {path}/pid; events {{}}
         http {{ access_log off; default_type text/plain; server {{ listen unix:{path}/socket;
         root {path}; client_body_temp_path {path}/body; proxy_temp_path {path}/proxy;
         fastcgi_temp_path {path}/f; uwsgi_temp_path {path}/u; scgi_temp_path {path}/s; }} }}"
    );
    std::fs::write(dir.path().join("conf"), settings).unwrap();
    let mut server = Command::new("nginx");
    server.arg("-p").arg(dir.path()).arg("-c").arg(dir.path().join("conf")).stderr(Stdio::null());
    let _server = Running(server.spawn().unwrap());
    let ask = |request: &str| {
        let mut stream = wait_for("nginx", || UnixStream::connect(&socket).ok());
        stream.write_all(request.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        // A server that keeps the connection answers one more request, then ends it.
        let last = "GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let _ = stream.write_all(last.as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut bytes);
        bytes
    };
    let get = format!("GET /1k HTTP/1.1\r\n{H}\r\n");
    let tag = answers(&ask(&get), &get)[0].field("etag").unwrap().to_owned();
    for row in ROWS.iter().filter(|row| row.4 == NGINX) {
        let request = filled(row, &tag);
        // The answer to the last request is the one that is not for a HEAD.
        let bytes = ask(&request);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let last = text.rfind("HTTP/1.1 404").filter(|_| row.3);
        let bytes = last.map_or(&bytes[..], |at| &bytes[..at]);
        check(row, &request, bytes, last.is_none(), "nginx");
    }
}
