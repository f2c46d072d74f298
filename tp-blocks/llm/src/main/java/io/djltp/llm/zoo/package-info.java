/** Hugging Face folders as models of DJL: {@code Criteria}, {@code Predictor} and DJL Serving. */
@NullMarked
package io.djltp.llm.zoo;

import org.jspecify.annotations.NullMarked;
