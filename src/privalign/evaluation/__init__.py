"""What a selection rule is worth on scored and graded candidates: kernels, outcomes, expectations, protocols."""
