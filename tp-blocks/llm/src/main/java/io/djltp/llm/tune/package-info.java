/** Contains training data for the fine-tuning of language models. */
@NullMarked
package io.djltp.llm.tune;

import org.jspecify.annotations.NullMarked;
