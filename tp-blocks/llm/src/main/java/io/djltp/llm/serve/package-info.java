/** Serves a language model over HTTP, with the schema of OpenAI. */
@NullMarked
package io.djltp.llm.serve;

import org.jspecify.annotations.NullMarked;
