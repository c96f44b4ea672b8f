//! Shorter replies to GET: none if the client has it already (`If-None-Match`), or gzip (RFC 1952).

use std::hash::{DefaultHasher, Hasher};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_NONE_MATCH, VARY,
};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use miniz_oxide::deflate::compress_to_vec;

/// Shorter bodies are sent as they are.
const WORTH_IT: usize = 1024;
/// Longer bodies are compressed in a thread of their own.
const BRIEF: usize = 16 << 10;
/// The level of compression: a metrics page of 1,000 ports has to be short, and takes no turn of
/// the supervisor's.
const LEVEL: u8 = 6;
/// A gzip header: deflate, no name, no time, from any system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

/// Answers a request, and shortens the reply as its client allows.
pub async fn shorten(request: Request, next: Next) -> Response {
    if request.method() != Method::GET {
        return next.run(request).await;
    }
    let (known, gzip) = (tags(request.headers()), takes_gzip(request.headers()));
    let (mut head, body) = next.run(request).await.into_parts();
    if head.status != StatusCode::OK {
        return Response::from_parts(head, body);
    }
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    // A strong tag is of exactly these bytes.
    let is_strong = head.headers.contains_key(ETAG);
    if !is_strong && let Ok(tag) = HeaderValue::try_from(tag_of(&body)) {
        head.headers.insert(ETAG, tag);
    }
    let own = head.headers.get(ETAG).and_then(|tag| tag.to_str().ok()).map(weak);
    if known.iter().any(|known| known == "*" || Some(weak(known)) == own) {
        head.status = StatusCode::NOT_MODIFIED;
        head.headers.remove(CONTENT_LENGTH);
        return Response::from_parts(head, Body::empty());
    }
    head.headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if !gzip || is_strong || body.len() < WORTH_IT {
        return Response::from_parts(head, Body::from(body));
    }
    head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    head.headers.remove(CONTENT_LENGTH);
    let (brief, packing) = (body.len() <= BRIEF, move || compressed(&body));
    let packed = if brief { Ok(packing()) } else { tokio::task::spawn_blocking(packing).await };
    packed.map_or_else(
        |_| StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        |packed| Response::from_parts(head, Body::from(packed)),
    )
}

/// A tag of a body. It is weak: the body may be sent compressed.
fn tag_of(body: &Bytes) -> String {
    let mut hash = DefaultHasher::new();
    hash.write(body);
    format!("W/\"{:016x}-{:x}\"", hash.finish(), body.len())
}

/// A tag as it is compared by `If-None-Match` (RFC 9110, 8.8.3.2).
fn weak(tag: &str) -> &str {
    tag.strip_prefix("W/").unwrap_or(tag)
}

/// The values of a header that is a list.
fn list(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

fn tags(headers: &HeaderMap) -> Vec<String> {
    list(headers, IF_NONE_MATCH).map(str::to_owned).collect()
}

/// True if the client takes gzip, by its name or by `*`, and does not refuse it by `q=0`.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let weight_of = |coding: &str| {
        list(headers, ACCEPT_ENCODING).find_map(|entry| {
            let mut parts = entry.split(';').map(str::trim);
            let is_it = parts.next()?.eq_ignore_ascii_case(coding);
            let weight = parts.find_map(|part| part.strip_prefix("q=")).unwrap_or("1");
            is_it.then(|| weight.parse::<f32>().unwrap_or(0.0))
        })
    };
    weight_of("gzip").or_else(|| weight_of("*")).is_some_and(|weight| weight > 0.0)
}

/// A body as gzip.
fn compressed(body: &[u8]) -> Vec<u8> {
    let mut packed = HEADER.to_vec();
    packed.extend(compress_to_vec(body, LEVEL));
    packed.extend(crc32(body).to_le_bytes());
    // The length modulo 2^32 (RFC 1952, 2.3.1).
    packed.extend((body.len() as u32).to_le_bytes());
    packed
}

/// The CRC of gzip (RFC 1952, 8).
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut n = 0;
        while n < 256 {
            let mut crc = n as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 { 0xedb8_8320 ^ (crc >> 1) } else { crc >> 1 };
                bit += 1;
            }
            table[n] = crc;
            n += 1;
        }
        table
    };
    !bytes
        .iter()
        .fold(u32::MAX, |crc, byte| TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)] ^ (crc >> 8))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// Linux's gzip reads what is written.
    #[test]
    fn gzip_unpacks_what_is_compressed() {
        for body in
            [Vec::new(), b"abc".to_vec(), (0..100_000u32).map(|i| (i % 251) as u8).collect()]
        {
            let mut gunzip = Command::new("gzip");
            gunzip.args(["-d", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = gunzip.spawn().unwrap();
            child.stdin.take().unwrap().write_all(&compressed(&body)).unwrap();
            let done = child.wait_with_output().unwrap();
            assert!(done.status.success() && done.stdout == body, "{} bytes", body.len());
        }
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn gzip_is_for_clients_that_take_it() {
        for (said, takes) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("*", true),
            ("gzip;q=0, *", false),
            ("gzip; q=0.0", false),
            ("identity", false),
            ("gzip;q=nonsense", false),
            ("", false),
        ] {
            let headers: HeaderMap =
                [(ACCEPT_ENCODING, HeaderValue::from_static(said))].into_iter().collect();
            assert_eq!(takes_gzip(&headers), takes, "{said}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
