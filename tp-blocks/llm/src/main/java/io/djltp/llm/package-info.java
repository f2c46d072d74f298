/** Language models: Hugging Face folders as networks over ranks. */
@NullMarked
package io.djltp.llm;

import org.jspecify.annotations.NullMarked;
