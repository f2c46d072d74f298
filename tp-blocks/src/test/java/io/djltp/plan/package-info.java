/** Tests plans. */
package io.djltp.plan;
