package io.djltp.llm.serve;

import com.google.gson.JsonObject;

import org.jspecify.annotations.Nullable;

import java.util.Locale;

/** An error that a client gets, with its HTTP status. */
final class ApiException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    private final int status;
    private final @Nullable String param;
    private final @Nullable String code;

    ApiException(int status, @Nullable String param, @Nullable String code, String message) {
        super(message, null, false, false);
        this.status = status;
        this.param = param;
        this.code = code;
    }

    /** Returns the error of a field of the request. */
    static ApiException of(@Nullable String param, String message, @Nullable Object... values) {
        String text = String.format(Locale.ROOT, message, values);
        return new ApiException(400, param, "invalid_value", text);
    }

    int status() {
        return status;
    }

    /** Returns the error in OpenAI's schema. */
    JsonObject toJson() {
        JsonObject error = new JsonObject();
        error.addProperty("message", getMessage());
        String type =
                switch (status) {
                    case 401 -> "authentication_error";
                    case 429 -> "rate_limit_error";
                    default -> status < 500 ? "invalid_request_error" : "server_error";
                };
        error.addProperty("type", type);
        error.addProperty("param", param);
        error.addProperty("code", code);
        JsonObject all = new JsonObject();
        all.add("error", error);
        return all;
    }
}
