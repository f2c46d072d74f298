import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;

import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Opens every page of docs/target/site in headless Chromium, 1300 and 400 pixels wide. Fails for a link that leads
 * nowhere, a picture that does not load, and a page that is wider than its window.
 *
 * <pre>
 * ./mvnw -Psite -pl :docs -am -Dmaven.test.skip package
 * java .ci/CheckSite.java [folder for screenshots of all pages, light and dark]
 * </pre>
 */
public class CheckSite {
    private static final Path SITE = Path.of("docs/target/site").toAbsolutePath();

    /** Runs in a page of Chromium, which opens the pages of the site in a frame. */
    private static final String CHECK =
            """
            <!DOCTYPE html><iframe height="900" style="border: 0"></iframe><script>
            const frame = document.querySelector('iframe');
            const ids = new Map(); // of a page, or of another file that a link leads to
            const links = new Map(); // from an address to the first page that has it
            const problems = new Set();
            const lines = []; // of the report

            async function open(page, width) {
                frame.width = width;
                await new Promise(resolve => {
                    frame.onload = resolve;
                    frame.src = page;
                });
                const opened = frame.contentDocument;
                for (const image of opened.images)
                    await image.decode().catch(() => problems.add(`${page}: no picture ${image.src}`));
                const root = opened.documentElement;
                lines.push(`size ${page} ${width} ${root.scrollHeight}`);
                if (root.scrollWidth > width)
                    problems.add(`${page}: ${root.scrollWidth} pixels wide in a window of ${width}`);
                ids.set(page, new Set([...opened.querySelectorAll('[id]')].map(each => each.id)));
                for (const {href} of opened.links)
                    if (href.startsWith(location.origin) && !links.has(href)) links.set(href, page);
            }

            async function idsOf(file) {
                if (!ids.has(file)) {
                    const answer = await fetch(file);
                    const found = (await answer.text()).matchAll(/ id="([^"]*)"/g);
                    ids.set(file, answer.ok ? new Set([...found].map(match => match[1])) : null);
                }
                return ids.get(file);
            }

            (async () => {
                for (const page of PAGES) for (const width of [1300, 400]) await open(page, width);
                for (const [href, page] of links) {
                    const {pathname, hash} = new URL(href);
                    const found = await idsOf(pathname);
                    if (!found || hash && !found.has(decodeURIComponent(hash.slice(1))))
                        problems.add(`${page}: a link leads nowhere: ${pathname}${hash}`);
                }
                lines.push(`${links.size} links`);
            })().catch(problem => problems.add(`The check failed: ${problem}`)).finally(() => {
                problems.forEach(each => lines.push(`problem ${each}`));
                fetch('/report', {method: 'POST', body: lines.join('\\n')});
            });
            </script>
            """;

    private final CompletableFuture<String> report = new CompletableFuture<>();
    private final Path profile = Files.createDirectories(Path.of("docs/target/chromium").toAbsolutePath());
    private final HttpServer server =
            HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    private final List<String> pages;

    private CheckSite() throws IOException {
        try (Stream<Path> files = Files.walk(SITE)) {
            pages =
                    files.map(file -> "/" + SITE.relativize(file).toString().replace(File.separatorChar, '/'))
                            .filter(page -> page.endsWith(".html") && !page.startsWith("/apidocs/"))
                            .sorted()
                            .toList();
        }
        server.createContext("/", this::answer);
    }

    public static void main(String[] args) throws Exception {
        CheckSite check = new CheckSite();
        check.server.start();
        boolean well;
        try {
            well = check.run(args);
        } finally {
            check.server.stop(0);
        }
        System.exit(well ? 0 : 1);
    }

    private boolean run(String[] args) throws Exception {
        System.out.println("check-site: " + pages.size() + " pages");
        Process browser = chromium("/check");
        List<String> lines;
        try {
            lines = report.get(300, TimeUnit.SECONDS).lines().toList();
        } finally {
            browser.destroy();
            browser.waitFor();
        }
        lines.stream().filter(each -> !each.startsWith("size")).forEach(System.out::println);
        if (args.length > 0) {
            Path folder = Files.createDirectories(Path.of(args[0]));
            for (String line : lines) {
                if (line.startsWith("size")) {
                    takePictures(folder, line.split(" "));
                }
            }
        }
        return !pages.isEmpty() && lines.stream().noneMatch(each -> each.startsWith("problem"));
    }

    private void takePictures(Path folder, String[] size) throws Exception {
        for (String scheme : List.of("dark", "light")) {
            String name = size[1].substring(1).replace("/", "-").replace(".html", "-" + size[2] + "-" + scheme + ".png");
            chromium(
                            size[1],
                            "--window-size=" + size[2] + "," + size[3],
                            "--blink-settings=preferredColorScheme=" + (scheme.equals("dark") ? 0 : 1),
                            "--screenshot=" + folder.resolve(name).toAbsolutePath())
                    .waitFor();
        }
    }

    private Process chromium(String page, String... options) throws IOException {
        List<String> command = new ArrayList<>(List.of(browser(), "--headless", "--no-sandbox", "--disable-gpu"));
        command.addAll(List.of("--hide-scrollbars", "--user-data-dir=" + profile));
        command.addAll(List.of(options));
        command.add("http://localhost:" + server.getAddress().getPort() + page);
        File log = profile.resolve("log").toFile();
        return new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log).start();
    }

    private static String browser() {
        for (String folder : System.getenv("PATH").split(File.pathSeparator)) {
            for (String name : List.of("chromium", "chromium-browser", "google-chrome")) {
                if (Files.isExecutable(Path.of(folder, name))) {
                    return folder + File.separator + name;
                }
            }
        }
        throw new IllegalStateException("No Chromium found: apt-get install chromium");
    }

    private void answer(HttpExchange exchange) throws IOException {
        try (exchange) {
            String path = exchange.getRequestURI().getPath();
            if (path.equals("/report")) {
                report.complete(new String(exchange.getRequestBody().readAllBytes()));
            }
            Path file = SITE.resolve(path.substring(1)).normalize();
            boolean found = path.equals("/check") || file.startsWith(SITE) && Files.isRegularFile(file);
            String type = path.endsWith(".html") || path.equals("/check") ? "text/html" : Files.probeContentType(file);
            if (type != null) {
                exchange.getResponseHeaders().set("Content-Type", type);
            }
            String list = pages.stream().collect(Collectors.joining("', '", "['", "']"));
            byte[] bytes =
                    path.equals("/check")
                            ? CHECK.replace("PAGES", list).getBytes()
                            : found ? Files.readAllBytes(file) : new byte[0];
            exchange.sendResponseHeaders(found ? 200 : 404, bytes.length == 0 ? -1 : bytes.length);
            exchange.getResponseBody().write(bytes);
        }
    }
}
