package io.djltp.llm;

import org.jspecify.annotations.Nullable;

import java.util.Map;

/** A template in the part of the language Jinja that chat templates use. */
final class JinjaTemplate {

    private final String file;

    private JinjaTemplate(String file) {
        this.file = file;
    }

    static JinjaTemplate parse(String file, String source) {
        return new JinjaTemplate(file);
    }

    String render(Map<String, @Nullable Object> variables) {
        throw new UnsupportedOperationException(file);
    }
}
