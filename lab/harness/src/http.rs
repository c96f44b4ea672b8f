//! One exchange over HTTP, and what its JSON says.

use std::io::{self, Read, Write};

use serde_json::{Value, json};

/// A string of JSON.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// One HTTP exchange. Returns the status and the JSON.
pub fn exchange(
    stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, Value) {
    try_exchange(stream, method, path, headers, body).unwrap()
}

/// As [`exchange`], with a daemon that may not be there.
pub fn try_exchange(
    stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> io::Result<(u16, Value)> {
    let (head, body) = head_and_body(stream, method, path, headers, body)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let value = serde_json::from_str(&body).unwrap_or_else(|_| json!(body));
    Ok((status.ok_or(io::ErrorKind::InvalidData)?, value))
}

/// The head and the body of an HTTP answer.
pub fn head_and_body(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> io::Result<(String, String)> {
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: toklat\r\nConnection: close\r\n{headers}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let no_http = || io::Error::new(io::ErrorKind::InvalidData, answer.clone());
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(no_http)?;
    Ok((head.to_owned(), body.to_owned()))
}
