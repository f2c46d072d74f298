package io.djltp.llm;

/**
 * A message of a chat.
 *
 * @param role who says it: mostly {@code system}, {@code user} or {@code assistant}
 * @param content what is said; may be empty
 */
public record ChatMessage(String role, String content) {}
