/** Language models: Hugging Face folders as networks over ranks. */
package io.djltp.llm;
