package io.djltp.internal.http;

import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.DoubleAdder;
import java.util.concurrent.atomic.LongAdder;

/** What a server has done, in the text format of Prometheus. */
public class HttpMetrics {

    /** The type of the text. */
    public static final String TYPE = "text/plain; version=0.0.4; charset=utf-8";

    final LongAdder queueFull = new LongAdder();
    private final Map<String, LongAdder> requests = new ConcurrentSkipListMap<>();

    /** Begins at 0. */
    public HttpMetrics() {}

    /** Seconds, counted by upper bounds. */
    public static final class Histogram {

        private final double[] bounds;
        private final LongAdder[] counts;
        private final DoubleAdder sum = new DoubleAdder();

        /**
         * Creates a histogram.
         *
         * @param bounds the upper bounds, ascending
         */
        public Histogram(double... bounds) {
            this.bounds = bounds;
            counts = new LongAdder[bounds.length + 1];
            Arrays.setAll(counts, i -> new LongAdder());
        }

        /**
         * Adds a time.
         *
         * @param seconds the time
         */
        public void add(double seconds) {
            int i = 0;
            while (i < bounds.length && seconds > bounds[i]) {
                i++;
            }
            counts[i].increment();
            sum.add(seconds);
        }
    }

    void countRequest(String route, int status) {
        String labels = "{route=\"" + route + "\",status=\"" + status + "\"}";
        requests.computeIfAbsent(labels, key -> new LongAdder()).increment();
    }

    /** {@return the figures of requests, to which others are added} */
    public StringBuilder requests() {
        StringBuilder text = new StringBuilder();
        type(text, "requests_total", "counter", "Requests by route and status");
        requests.forEach((labels, count) -> line(text, "requests_total" + labels, count));
        value(text, "queue_full_total", "counter", "Requests that got status 429", queueFull);
        return text;
    }

    /**
     * Adds a histogram.
     *
     * @param text the text
     * @param name its name
     * @param help what it is
     * @param of the histogram
     */
    public static void histogram(StringBuilder text, String name, String help, Histogram of) {
        type(text, name, "histogram", help);
        long count = 0;
        for (int i = 0; i < of.counts.length; i++) {
            count += of.counts[i].sum();
            String bound = i < of.bounds.length ? "" + of.bounds[i] : "+Inf";
            line(text, name + "_bucket{le=\"" + bound + "\"}", count);
        }
        line(text, name + "_sum", of.sum);
        line(text, name + "_count", count);
    }

    /**
     * Adds a figure.
     *
     * @param text the text
     * @param name its name
     * @param type its type
     * @param help what it is
     * @param value its value
     */
    public static void value(
            StringBuilder text, String name, String type, String help, Object value) {
        type(text, name, type, help);
        line(text, name, value);
    }

    /**
     * Begins a figure.
     *
     * @param text the text
     * @param name its name
     * @param type its type
     * @param help what it is
     */
    public static void type(StringBuilder text, String name, String type, String help) {
        text.append("# HELP tp_").append(name).append(' ').append(help).append('\n');
        text.append("# TYPE tp_").append(name).append(' ').append(type).append('\n');
    }

    /**
     * Adds a line.
     *
     * @param text the text
     * @param name its name, with labels
     * @param value its value
     */
    public static void line(StringBuilder text, String name, Object value) {
        text.append("tp_").append(name).append(' ').append(value).append('\n');
    }
}
