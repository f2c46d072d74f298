package io.djltp.report;

import com.google.gson.Gson;
import com.google.gson.JsonObject;

import io.djltp.files.SideFolder;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** The file of a report: a page with its style, the charting library uPlot, and the data in it. */
final class ReportPage {

    /** The build of uPlot that is a script and needs no other. */
    private static final String CHARTS = "/META-INF/resources/webjars/uplot/1.6.30/dist/";

    /** Writes a less-than sign as an escape: no text can end the script that the data lie in. */
    private static final Gson GSON = new Gson();

    private final Path file;
    private String before; // the data
    private String after;

    ReportPage(Path file) {
        this.file = file.toAbsolutePath();
    }

    /** Checks that a file can be written. */
    static void check(Path file) {
        Path folder = file.toAbsolutePath().getParent();
        if (Files.isDirectory(file)) {
            throw new IllegalArgumentException("The report " + file + " is a folder: name a file");
        }
        if (folder == null || !Files.isDirectory(folder) || !Files.isWritable(folder)) {
            throw new IllegalArgumentException(
                    "The report "
                            + file
                            + " cannot be written: "
                            + folder
                            + " must be a folder that is there and can be written to");
        }
    }

    /** Replaces the page: whoever opens it gets the old one or the new one. */
    void write(JsonObject data, boolean running) throws IOException {
        if (before == null) {
            read();
        }
        String refresh = running ? refresh(data.get("interval").getAsDouble()) : "";
        String text = before.replace("<!-- refresh -->", refresh) + GSON.toJson(data) + after;
        try (SideFolder side = SideFolder.in(file.getParent())) {
            Files.writeString(side.resolve(file.getFileName().toString()), text);
            side.replace();
        }
    }

    private static String refresh(double seconds) {
        return "<meta http-equiv=\"refresh\" content=\"" + Math.round(seconds) + "\">";
    }

    private void read() throws IOException {
        String page =
                resource("report.html")
                        .replace("/* charts.css */", resource(CHARTS + "uPlot.min.css"))
                        .replace("/* report.css */", resource("report.css"))
                        .replace("/* report.js */", resource("report.js"))
                        .replace("/* charts.js */", resource(CHARTS + "uPlot.iife.min.js"));
        String[] parts = page.split("/\\* data \\*/", 2);
        before = parts[0];
        after = parts[1];
    }

    private static String resource(String name) throws IOException {
        try (InputStream in = ReportPage.class.getResourceAsStream(name)) {
            if (in == null) {
                throw new FileNotFoundException(name + " is not on the class path");
            }
            return new String(in.readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return file.toString();
    }
}
