package io.djltp.llm.serve;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.DoubleAdder;
import java.util.concurrent.atomic.LongAdder;

/** What a server has done, in the text format of Prometheus. */
final class ServerMetrics {

    final LongAdder promptTokens = new LongAdder();
    final LongAdder generatedTokens = new LongAdder();
    final LongAdder queueFull = new LongAdder();
    final DoubleAdder prefillSeconds = new DoubleAdder();
    final DoubleAdder decodeSeconds = new DoubleAdder();
    final Histogram firstToken = new Histogram(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100);
    final Histogram perToken = new Histogram(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3);
    private final Map<String, LongAdder> requests = new ConcurrentSkipListMap<>();

    /** Seconds, counted by upper bounds. */
    static final class Histogram {

        private final double[] bounds;
        private final LongAdder[] counts;
        private final DoubleAdder sum = new DoubleAdder();

        Histogram(double... bounds) {
            this.bounds = bounds;
            counts = new LongAdder[bounds.length + 1];
            for (int i = 0; i < counts.length; i++) {
                counts[i] = new LongAdder();
            }
        }

        void add(double seconds) {
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

    /** Returns all figures. */
    String text(int running, int waiting, List<Long> bytes) {
        StringBuilder text = new StringBuilder();
        type(text, "requests_total", "counter", "Requests by route and status");
        requests.forEach((labels, count) -> line(text, "requests_total" + labels, count));
        value(text, "texts_running", "gauge", "Texts in the batch", running);
        value(text, "texts_waiting", "gauge", "Texts that wait for a place", waiting);
        value(text, "queue_full_total", "counter", "Requests that got status 429", queueFull);
        value(text, "prompt_tokens_total", "counter", "Tokens of prompts", promptTokens);
        value(text, "generated_tokens_total", "counter", "Generated tokens", generatedTokens);
        value(text, "prefill_seconds_total", "counter", "Prefill, of each text", prefillSeconds);
        value(text, "decode_seconds_total", "counter", "Decode, of each text", decodeSeconds);
        histogram(text, "time_to_first_token_seconds", "From the request", firstToken);
        histogram(text, "time_per_token_seconds", "After the first, mean of a text", perToken);
        type(text, "memory_bytes", "gauge", "Weights and cache of a rank of this process");
        for (int i = 0; i < bytes.size(); i++) {
            line(text, "memory_bytes{rank=\"" + i + "\"}", bytes.get(i));
        }
        return text.toString();
    }

    private static void histogram(StringBuilder text, String name, String help, Histogram of) {
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

    private static void value(
            StringBuilder text, String name, String type, String help, Object value) {
        type(text, name, type, help);
        line(text, name, value);
    }

    private static void type(StringBuilder text, String name, String type, String help) {
        text.append("# HELP tp_").append(name).append(' ').append(help).append('\n');
        text.append("# TYPE tp_").append(name).append(' ').append(type).append('\n');
    }

    private static void line(StringBuilder text, String name, Object value) {
        text.append("tp_").append(name).append(' ').append(value).append('\n');
    }
}
