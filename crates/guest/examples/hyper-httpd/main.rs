//! hyper's HTTP/1 server, unchanged, on async sockets of a guest.
//!
//!     cargo run --release -p toklat-guest --example hyper-httpd vale0:web 10.0.0.2/24
//!
//! `/` is a page, `/hello/NAME` greets, and `/echo` sends a request's body back.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use guest::sockets::{Net, Timer};
use guest::{Bytes, Host, RingNic};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};

type Body = Either<Full<Bytes>, Incoming>;

fn text(text: String) -> Response<Body> {
    Response::new(Either::Left(Full::new(text.into())))
}

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    Ok(match (request.method(), path.strip_prefix("/hello/")) {
        (&Method::GET, _) if path == "/" => text("<h1>hyper, on a guest</h1>\n".into()),
        (&Method::GET, Some(name)) => text(format!("Hello, {name}!\n")),
        (&Method::POST, _) if path == "/echo" => Response::new(Either::Right(request.into_body())),
        _ => {
            // What the client sends has to be read, so that its next request is understood.
            let _ = request.into_body().collect().await;
            let mut missing = text("There is no such page.\n".into());
            *missing.status_mut() = StatusCode::NOT_FOUND;
            missing
        }
    })
}

/// Serves for ever.
async fn serve(net: &Net<RingNic>, timer: &Timer) -> Result<Infallible, Box<dyn Error>> {
    let listener = net.listen(80, 1024)?;
    loop {
        let stream = listener.accept().await;
        let connection = http1::Builder::new()
            .timer(timer.clone())
            .header_read_timeout(Duration::from_secs(30))
            .serve_connection(stream, service_fn(answer));
        net.spawn(async move {
            if let Err(error) = connection.await {
                eprintln!("a client failed: {error}");
            }
        });
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    Ok(Host::from_env()?.run(|stack| {
        for address in stack.addresses() {
            println!("http://{}/", SocketAddr::new(address, 80));
        }
        let net = Net::new(stack);
        let timer = net.timer();
        net.run(serve(&net, &timer))?.map(|never| match never {})
    })?)
}
