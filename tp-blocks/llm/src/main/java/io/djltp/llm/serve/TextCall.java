package io.djltp.llm.serve;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;

import io.djltp.internal.http.ApiException;
import io.djltp.internal.http.Fields;
import io.djltp.internal.http.HttpFront;
import io.djltp.llm.GeneratedToken;
import io.djltp.llm.GeneratedToken.FinishReason;
import io.djltp.llm.GeneratedToken.LogProbability;
import io.djltp.llm.Generation;
import io.djltp.llm.Generator;

import org.eclipse.jetty.http.HttpHeader;
import org.eclipse.jetty.io.Content;
import org.eclipse.jetty.io.EndPoint;
import org.eclipse.jetty.server.Request;
import org.eclipse.jetty.server.Response;
import org.eclipse.jetty.util.BufferUtil;
import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.UUID;

/**
 * A request for text that is being answered, by one thread. Others may cancel it, or look whether
 * its client is still there.
 */
final class TextCall {

    private static final double LEAST = -9999; // instead of minus infinity, as OpenAI

    private final TextRequest asked;
    private final Generator generator;
    private final String model;
    private final ServerMetrics metrics;
    private final Request request;
    private final Response response;
    private final long begin = System.nanoTime();
    private final long created = System.currentTimeMillis() / 1000;
    private final String id;
    private final Choice[] choices;
    private final ByteBuffer ahead = BufferUtil.allocate(1);
    private @Nullable OutputStream events;
    private @Nullable Generation generation;
    private @Nullable ApiException cancelled;
    private boolean watched = true;
    private int tokens;

    /** A text that is being generated. */
    private static final class Choice {

        final int index;
        final StringBuilder text = new StringBuilder();
        final List<GeneratedToken> likely = new ArrayList<>(); // whose probabilities are to be sent
        int last; // token whose probabilities were sent
        int offset; // of the text of the next one
        @Nullable FinishReason reason;
        int tokens;
        long first; // when its first token came
        long latest;

        Choice(int index, int last) {
            this.index = index;
            this.last = last;
        }
    }

    TextCall(
            TextRequest asked,
            Generator generator,
            String model,
            ServerMetrics metrics,
            Request request,
            Response response) {
        this.asked = asked;
        this.generator = generator;
        this.model = model;
        this.metrics = metrics;
        this.request = request;
        this.response = response;
        id = (asked.chat ? "chatcmpl-" : "cmpl-") + UUID.randomUUID();
        choices = new Choice[asked.prompts.size()];
        Arrays.setAll(choices, i -> new Choice(i, last(asked.prompts.get(i))));
    }

    private static int last(int[] prompt) {
        return prompt.length == 0 ? -1 : prompt[prompt.length - 1];
    }

    /** Generates the texts, and returns what is to be sent at the end. */
    String run() throws IOException {
        try (Generation texts = start()) {
            throwIfCancelled();
            metrics.promptTokens.add(asked.promptTokens());
            try {
                while (texts.hasNext()) {
                    GeneratedToken token = texts.next();
                    accept(choices[token.prompt()], token);
                }
            } finally {
                count(texts);
            }
            throwIfCancelled();
            return asked.stream ? end() : whole().toString();
        } catch (RuntimeException e) {
            throwIfCancelled(); // which the exception comes from
            throw e;
        } finally {
            stopWatching();
        }
    }

    private Generation start() {
        Generation started =
                TextRequest.checked(
                        "prompt", () -> generator.generateIds(asked.prompts, asked.options));
        synchronized (this) {
            generation = started;
        }
        return started;
    }

    private void count(Generation texts) {
        metrics.generatedTokens.add(tokens);
        metrics.reusedTokens.add(texts.getReusedTokens());
        metrics.prefillSeconds.add(texts.getPrefillSeconds());
        metrics.decodeSeconds.add(texts.getDecodeSeconds());
        for (Choice choice : choices) {
            if (choice.tokens > 1) {
                metrics.perToken.add((choice.latest - choice.first) / 1e9 / (choice.tokens - 1));
            }
        }
    }

    private void accept(Choice choice, GeneratedToken token) throws IOException {
        tokens++;
        choice.tokens++;
        choice.latest = System.nanoTime();
        if (choice.tokens == 1) {
            choice.first = choice.latest;
            metrics.firstToken.add((choice.first - begin) / 1e9);
        }
        choice.reason = token.finishReason();
        boolean ofText = !asked.options.getStopTokens().contains(token.id());
        if (ofText && !token.logProbabilities().isEmpty()) {
            choice.likely.add(token);
        }
        if (!asked.stream) {
            choice.text.append(token.text());
            return;
        }
        if (choice.tokens == 1 && asked.chat) {
            send(chunk(choice, message(""), null));
        }
        if (!token.text().isEmpty()) {
            send(chunk(choice, text(token.text()), null));
        }
        if (choice.reason != null) {
            send(chunk(choice, asked.chat ? new JsonObject() : text(""), choice.reason));
        }
    }

    /** Returns a chat's message, or its beginning. */
    private static JsonObject message(String content) {
        return Fields.json("role", "assistant", "content", content);
    }

    private JsonObject text(String text) {
        return Fields.json(asked.chat ? "content" : "text", text);
    }

    private JsonObject chunk(Choice choice, JsonObject piece, @Nullable FinishReason reason) {
        JsonObject all = answer(asked.chat ? "chat.completion.chunk" : "text_completion");
        all.getAsJsonArray("choices").add(choice(choice, "delta", piece, reason));
        if (asked.usage) {
            all.add("usage", JsonNull.INSTANCE);
        }
        return all;
    }

    private JsonObject choice(
            Choice choice, String name, JsonObject piece, @Nullable FinishReason reason) {
        JsonObject json = asked.chat ? new JsonObject() : piece;
        json.addProperty("index", choice.index);
        if (asked.chat) {
            json.add(name, piece);
        }
        json.add("logprobs", logprobs(choice));
        json.addProperty(
                "finish_reason", reason == null ? null : reason.name().toLowerCase(Locale.ROOT));
        return json;
    }

    /** Returns how likely the tokens are that have come since the last call. */
    private JsonElement logprobs(Choice choice) {
        if (choice.likely.isEmpty()) {
            return JsonNull.INSTANCE;
        }
        JsonObject json = new JsonObject();
        List<String> names =
                asked.chat
                        ? List.of("content")
                        : List.of("tokens", "token_logprobs", "top_logprobs", "text_offset");
        names.forEach(name -> json.add(name, new JsonArray()));
        for (GeneratedToken token : choice.likely) {
            List<LogProbability> all = token.logProbabilities();
            JsonObject own = likely(all.get(0), choice.last);
            JsonArray top = new JsonArray();
            all.subList(1, all.size()).forEach(each -> top.add(likely(each, choice.last)));
            choice.last = token.id();
            if (asked.chat) {
                own.add("top_logprobs", top);
                json.getAsJsonArray("content").add(own);
                continue;
            }
            JsonObject values = new JsonObject();
            top.add(own); // as OpenAI, even if it is none of the likeliest
            for (JsonElement each : top) {
                JsonObject object = each.getAsJsonObject();
                values.add(object.get("token").getAsString(), object.get("logprob"));
            }
            json.getAsJsonArray("tokens").add(own.get("token"));
            json.getAsJsonArray("token_logprobs").add(own.get("logprob"));
            json.getAsJsonArray("top_logprobs").add(values);
            json.getAsJsonArray("text_offset").add(choice.offset);
            choice.offset += own.get("token").getAsString().length();
        }
        choice.likely.clear();
        return json;
    }

    private JsonObject likely(LogProbability token, int before) {
        String text = textOf(token.id(), before);
        JsonArray bytes = new JsonArray();
        for (byte each : text.getBytes(StandardCharsets.UTF_8)) {
            bytes.add(each & 0xFF);
        }
        return Fields.json(
                "token",
                text,
                "logprob",
                Math.max(LEAST, token.value()),
                "bytes",
                text.contains("\uFFFD") ? null : bytes);
    }

    /** Returns the text of a token, with the space that it may have after another one. */
    private String textOf(int id, int before) {
        if (generator.getModel().getTokenizer() == null) {
            return "token_id:" + id; // as vLLM
        }
        String first = before < 0 ? "" : generator.decode(new int[] {before});
        String both = first.isEmpty() ? "" : generator.decode(new int[] {before, id});
        return first.isEmpty() || !both.startsWith(first)
                ? generator.decode(new int[] {id})
                : both.substring(first.length());
    }

    private JsonObject answer(String object) {
        JsonObject all =
                Fields.json("id", id, "object", object, "created", created, "model", model);
        all.add("choices", new JsonArray());
        return all;
    }

    private JsonObject whole() {
        JsonObject all = answer(asked.chat ? "chat.completion" : "text_completion");
        for (Choice choice : choices) {
            String text = choice.text.toString();
            JsonObject piece = asked.chat ? message(text) : text(text);
            all.getAsJsonArray("choices").add(choice(choice, "message", piece, choice.reason));
        }
        all.add("usage", usage());
        return all;
    }

    private JsonObject usage() {
        int prompt = asked.promptTokens();
        return Fields.json(
                "prompt_tokens",
                prompt,
                "completion_tokens",
                tokens,
                "total_tokens",
                prompt + tokens);
    }

    private String end() throws IOException {
        if (asked.usage) {
            JsonObject all = answer(asked.chat ? "chat.completion.chunk" : "text_completion");
            all.add("usage", usage());
            send(all);
        }
        return "data: [DONE]\n\n";
    }

    /** Sends an event, and waits until the client takes it. */
    private void send(JsonObject json) throws IOException {
        OutputStream out = events;
        if (out == null) {
            stopWatching();
            response.getHeaders().put(HttpHeader.CONTENT_TYPE, "text/event-stream; charset=utf-8");
            response.getHeaders().put(HttpHeader.CACHE_CONTROL, "no-cache");
            out = Content.Sink.asOutputStream(response);
            events = out;
        }
        out.write(HttpFront.event(json).getBytes(StandardCharsets.UTF_8));
        out.flush();
    }

    /** Ends the texts, with an error. */
    synchronized void cancel(ApiException why) {
        if (cancelled == null) {
            cancelled = why;
        }
        if (generation != null) {
            generation.close();
        }
    }

    private synchronized void throwIfCancelled() {
        if (cancelled != null) {
            throw cancelled;
        }
    }

    private synchronized void stopWatching() {
        watched = false;
    }

    /**
     * Cancels the texts if the client has closed the connection, before anything is sent to it:
     * Jetty does not read while a request is being answered. After that, sending fails.
     */
    synchronized void watch() {
        if (!watched) {
            return;
        }
        EndPoint client = request.getConnectionMetaData().getConnection().getEndPoint();
        try {
            int read = client.fill(ahead);
            if (read > 0) { // of the next request, which is lost: the client sends it again
                response.getHeaders().put(HttpHeader.CONNECTION, "close");
                watched = false;
            } else if (read < 0) {
                cancel(HttpFront.GONE);
            }
        } catch (IOException e) {
            cancel(HttpFront.GONE);
        }
    }
}
