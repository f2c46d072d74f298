package io.djltp.llm.serve;

import io.djltp.internal.http.HttpMetrics;

import java.util.List;
import java.util.concurrent.atomic.DoubleAdder;
import java.util.concurrent.atomic.LongAdder;

/** What a server has done, in the text format of Prometheus. */
final class ServerMetrics extends HttpMetrics {

    final LongAdder promptTokens = new LongAdder();
    final LongAdder reusedTokens = new LongAdder();
    final LongAdder generatedTokens = new LongAdder();
    final DoubleAdder prefillSeconds = new DoubleAdder();
    final DoubleAdder decodeSeconds = new DoubleAdder();
    final Histogram firstToken = new Histogram(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100);
    final Histogram perToken = new Histogram(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3);

    /** Returns all figures. */
    String text(int running, int waiting, List<Long> bytes) {
        StringBuilder text = requests();
        value(text, "texts_running", "gauge", "Texts in the batch", running);
        value(text, "texts_waiting", "gauge", "Texts that wait for a place", waiting);
        value(text, "prompt_tokens_total", "counter", "Tokens of prompts", promptTokens);
        value(
                text,
                "reused_tokens_total",
                "counter",
                "Tokens of prompts not computed",
                reusedTokens);
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
}
