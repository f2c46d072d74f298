/** Hugging Face folders that are made. */
package io.djltp.llm.zoo;
