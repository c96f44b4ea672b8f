//! Heads of answers, and the time in them.

use std::fmt::Write as _;

use tcp::Bytes;

use super::request::Keep;

/// What an answer says before its body.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head<'a> {
    pub status: &'a str,
    pub kind: &'a str,
    pub etag: Option<&'a str>,
    /// Bytes of the body; `None` for an answer without one.
    pub len: Option<usize>,
    pub keep: Keep,
    /// Further fields, each with its line end.
    pub more: &'a str,
}

impl Head<'_> {
    /// `date` is a whole field, or nothing.
    pub fn write(&self, date: &str) -> Bytes {
        let mut text = format!("HTTP/1.1 {}\r\n{date}", self.status);
        text.push_str(match self.keep {
            Keep::Open => "",
            Keep::Told => "Connection: keep-alive\r\n",
            Keep::Close => "Connection: close\r\n",
        });
        if let Some(len) = self.len {
            let _ = write!(text, "Content-Type: {}\r\nContent-Length: {len}\r\n", self.kind);
        }
        if let Some(etag) = self.etag {
            let _ = write!(text, "ETag: {etag}\r\nAccept-Ranges: bytes\r\n");
        }
        (text + self.more + "\r\n").into()
    }
}

/// The field `Date` (RFC 9110, 5.6.7) of a time in seconds since 1970.
pub fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, in eras of 400 years; years begin in March, so leap days are last.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = (month + 2) % 12;
    let year = era * 400 + year + u64::from(month < 2);
    let (weekday, month) = (DAYS[(days % 7) as usize], MONTHS[month as usize]);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("Date: {weekday}, {date:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00"),
            (1_709_251_200, "Fri, 01 Mar 2024 00:00:00"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59"),
        ] {
            assert_eq!(date(seconds), format!("Date: {text} GMT\r\n"));
        }
    }
}
