package io.djltp.llm.serve;

import com.google.gson.JsonArray;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;

import io.djltp.llm.GeneratedToken;
import io.djltp.llm.GeneratedToken.FinishReason;
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
import java.util.Arrays;
import java.util.Locale;
import java.util.UUID;

/**
 * A request for text that is being answered, by one thread. Others may cancel it, or look whether
 * its client is still there.
 */
final class TextCall {

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
        @Nullable FinishReason reason;
        int tokens;
        long first; // when its first token came
        long last;

        Choice(int index) {
            this.index = index;
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
        Arrays.setAll(choices, Choice::new);
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
        metrics.prefillSeconds.add(texts.getPrefillSeconds());
        metrics.decodeSeconds.add(texts.getDecodeSeconds());
        for (Choice choice : choices) {
            if (choice.tokens > 1) {
                metrics.perToken.add((choice.last - choice.first) / 1e9 / (choice.tokens - 1));
            }
        }
    }

    private void accept(Choice choice, GeneratedToken token) throws IOException {
        tokens++;
        choice.tokens++;
        choice.last = System.nanoTime();
        if (choice.tokens == 1) {
            choice.first = choice.last;
            metrics.firstToken.add((choice.first - begin) / 1e9);
        }
        choice.reason = token.finishReason();
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
        JsonObject message = new JsonObject();
        message.addProperty("role", "assistant");
        message.addProperty("content", content);
        return message;
    }

    private JsonObject text(String text) {
        JsonObject piece = new JsonObject();
        piece.addProperty(asked.chat ? "content" : "text", text);
        return piece;
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
        json.add("logprobs", JsonNull.INSTANCE);
        json.addProperty(
                "finish_reason", reason == null ? null : reason.name().toLowerCase(Locale.ROOT));
        return json;
    }

    private JsonObject answer(String object) {
        JsonObject all = new JsonObject();
        all.addProperty("id", id);
        all.addProperty("object", object);
        all.addProperty("created", created);
        all.addProperty("model", model);
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
        JsonObject usage = new JsonObject();
        usage.addProperty("prompt_tokens", asked.promptTokens());
        usage.addProperty("completion_tokens", tokens);
        usage.addProperty("total_tokens", asked.promptTokens() + tokens);
        return usage;
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
        out.write(event(json).getBytes(StandardCharsets.UTF_8));
        out.flush();
    }

    static String event(JsonObject json) {
        return "data: " + json + "\n\n";
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
                cancel(ModelServer.GONE);
            }
        } catch (IOException e) {
            cancel(ModelServer.GONE);
        }
    }
}
