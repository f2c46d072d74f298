/**
 * Models of LangChain4j in the same process. They need {@code dev.langchain4j:langchain4j-core}.
 */
@NullMarked
package io.djltp.llm.langchain4j;

import org.jspecify.annotations.NullMarked;
