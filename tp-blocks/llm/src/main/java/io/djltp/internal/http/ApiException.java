package io.djltp.internal.http;

import com.google.gson.JsonObject;

import org.jspecify.annotations.Nullable;

import java.util.Locale;

/** An error that a client gets, with its HTTP status. */
public final class ApiException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    private final int status;
    private final @Nullable String param;
    private final @Nullable String code;

    /**
     * Creates an error.
     *
     * @param status the status
     * @param param the field of the request, or {@code null}
     * @param code what programs recognize it by, or {@code null}
     * @param message what people read
     */
    public ApiException(int status, @Nullable String param, @Nullable String code, String message) {
        super(message, null, false, false);
        this.status = status;
        this.param = param;
        this.code = code;
    }

    /**
     * Returns the error of a field of the request.
     *
     * @param param the field, or {@code null}
     * @param message the message, with places for values
     * @param values the values
     * @return the error, of status 400
     */
    public static ApiException of(
            @Nullable String param, String message, @Nullable Object... values) {
        String text = String.format(Locale.ROOT, message, values);
        return new ApiException(400, param, "invalid_value", text);
    }

    /** {@return the status} */
    public int status() {
        return status;
    }

    /** {@return the error in OpenAI's schema} */
    public JsonObject toJson() {
        String type =
                switch (status) {
                    case 401 -> "authentication_error";
                    case 429 -> "rate_limit_error";
                    default -> status < 500 ? "invalid_request_error" : "server_error";
                };
        return Fields.json(
                "error",
                Fields.json("message", getMessage(), "type", type, "param", param, "code", code));
    }
}
