//! Requests: their heads, as RFC 9110 and 9112 want them read.

use std::borrow::Cow;

/// Maximum length of a request's head.
const MAX_HEAD: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
/// Maximum length of a request's body, which is read and dropped.
const MAX_BODY: u64 = 64 << 10;

/// Whether the connection goes on after the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    #[default]
    Open,
    /// A client of HTTP/1.0 has asked for it, and wants to be told.
    Told,
    Close,
}

/// The parts of a request that the server uses.
#[derive(Debug, Default)]
pub struct Request<'a> {
    pub method: &'a str,
    pub target: &'a str,
    pub keep: Keep,
    /// Bytes of the body that follows.
    pub body: usize,
    pub range: Option<&'a [u8]>,
    pub if_range: Option<&'a [u8]>,
    pub if_match: Option<&'a [u8]>,
    pub if_none_match: Option<&'a [u8]>,
    hosts: usize,
    length: Option<u64>,
}

/// The start of a connection's data.
#[derive(Debug)]
pub enum Read<'a> {
    /// The head is not whole.
    Part,
    /// The head cannot be understood, so the connection ends with this status.
    Refused(&'static str),
    /// The length of the head, and the request.
    Whole(usize, Request<'a>),
}

const BAD: &str = "400 Bad Request";

impl<'a> Read<'a> {
    pub fn of(data: &'a [u8]) -> Self {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        match parsed.parse(data) {
            Ok(httparse::Status::Complete(len)) if len <= MAX_HEAD => {
                Request::of(&parsed).map_or_else(Self::Refused, |request| Self::Whole(len, request))
            }
            Ok(httparse::Status::Partial) if data.len() <= MAX_HEAD => Self::Part,
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                Self::Refused("431 Request Header Fields Too Large")
            }
            Err(httparse::Error::Version) => Self::Refused("505 HTTP Version Not Supported"),
            Err(_) => Self::Refused(BAD),
        }
    }
}

/// Returns the head with version 1.1 in place of a later one of HTTP/1, which is to be read like it
/// (RFC 9110, 2.5); `None` if it is of no such version, or not whole.
pub fn with_known_version(data: &[u8]) -> Option<Vec<u8>> {
    let line = data.iter().skip_while(|byte| matches!(byte, b'\r' | b'\n'));
    let start = data.len() - line.count();
    let end = start + data[start..].iter().position(|byte| *byte == b'\n')?;
    let line = data[start..end].strip_suffix(b"\r").unwrap_or_else(|| &data[start..end]);
    match line {
        [before @ .., b' ', b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => {
            let mut data = data[..data.len().min(MAX_HEAD + 1)].to_vec();
            *data.get_mut(start + before.len() + 8)? = b'1';
            Some(data)
        }
        _ => None,
    }
}

/// The elements of a list (RFC 9110, 5.6.1).
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|word| !word.is_empty())
}

fn is_host(value: &[u8]) -> bool {
    value.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(byte))
}

impl<'a> Request<'a> {
    /// One that was not understood: nothing can follow it.
    pub fn unknown() -> Self {
        Self { keep: Keep::Close, ..Self::default() }
    }

    fn of(parsed: &httparse::Request<'_, 'a>) -> Result<Self, &'static str> {
        let is_old = parsed.version == Some(0);
        let (method, target) = (parsed.method.unwrap_or_default(), parsed.path.unwrap_or_default());
        let mut request = Self { method, target, ..Self::default() };
        let (mut closes, mut keeps) = (false, false);
        for header in &*parsed.headers {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            let value = header.value.trim_ascii();
            if is("connection") {
                closes |= list(value).any(|word| word.eq_ignore_ascii_case(b"close"));
                keeps |= list(value).any(|word| word.eq_ignore_ascii_case(b"keep-alive"));
            } else if is("expect") && !is_old {
                // The answer comes at once, so the client need not send its body.
                closes = true;
            } else {
                request.field(header.name, value)?;
            }
        }
        if request.hosts > 1 || request.hosts == 0 && !is_old {
            return Err(BAD);
        }
        request.keep = match (closes, is_old, keeps) {
            (false, false, _) => Keep::Open,
            (false, true, true) => Keep::Told,
            _ => Keep::Close,
        };
        Ok(request)
    }

    /// Reads a field that is not about the connection.
    fn field(&mut self, name: &str, value: &'a [u8]) -> Result<(), &'static str> {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        if is("host") {
            self.hosts += 1;
            return if is_host(value) { Ok(()) } else { Err(BAD) };
        } else if is("range") {
            self.range = Some(value);
        } else if is("if-range") {
            self.if_range = Some(value);
        } else if is("if-match") {
            self.if_match = Some(value);
        } else if is("if-none-match") {
            self.if_none_match = Some(value);
        } else if is("transfer-encoding") {
            // Where a body ends must not be in doubt (RFC 9112, 6.3), so it has to say its length.
            return Err("411 Length Required");
        } else if is("content-length") {
            let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            let length = std::str::from_utf8(value).ok().filter(|_| digits);
            let length = length.and_then(|text| text.parse().ok()).ok_or(BAD)?;
            if self.length.replace(length).is_some_and(|other| other != length) {
                return Err(BAD);
            }
            if length > MAX_BODY {
                return Err("413 Content Too Large");
            }
            self.body = length as usize;
        }
        Ok(())
    }

    /// The path that is asked for, without escapes; `None` if the target is malformed. A proxy's
    /// form names the host, too (RFC 9112, 3.2.2).
    pub fn path(&self) -> Option<Cow<'a, str>> {
        let target = self.target;
        let end = |at: usize| {
            target.get(..at).is_some_and(|it| {
                it.eq_ignore_ascii_case("http://") || it.eq_ignore_ascii_case("https://")
            })
        };
        let path = match [7, 8].into_iter().find(|at| end(*at)) {
            Some(at) => {
                let rest = &target[at..];
                let host = rest.find(['/', '?', '#']).unwrap_or(rest.len());
                if host == 0 || !is_host(&rest.as_bytes()[..host]) {
                    return None;
                }
                &rest[host..]
            }
            None => Some(target).filter(|target| target.starts_with('/'))?,
        };
        let path = path.split(['?', '#']).next().unwrap_or_default();
        match path {
            "" => Some("/".into()),
            path if path.contains('%') => unescape(path).map(Cow::Owned),
            path => Some(path.into()),
        }
    }
}

/// Resolves percent-encoding (RFC 3986, 2.1).
fn unescape(path: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), path.as_bytes());
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let ([high, low], after) = rest.split_first_chunk::<2>()?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
        rest = after;
    }
    // No document has a name that is not UTF-8.
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
